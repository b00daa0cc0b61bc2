"""Which settings of the gateway depend on where the engines run."""

import pytest

from tunan.config import deployment_from
from tunan.supervisor.service import Options, gateway_of


@pytest.mark.parametrize(
    ("target", "given", "found"),
    [
        ("cpu", None, None),
        ("ascend910b3", None, False),
        ("ascend910b3", True, True),
        ("cpu", False, False),
    ],
)
def test_on_an_npu_our_sampler_is_used_only_if_asked_for(
    target: str, given: bool | None, found: bool | None
) -> None:
    content = {"model": {"path": "/m"}, "gateway": {"resume_sampled": given}}
    asked = deployment_from(content, "test")
    assert gateway_of(asked, Options(target=target)).resume_sampled is found
