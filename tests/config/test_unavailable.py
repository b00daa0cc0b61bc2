"""What the schema knows and this version cannot do is refused, never ignored."""

import pytest

from tunan.config import deployment_from, refuse_unavailable
from tunan.errors import UsageError


@pytest.mark.parametrize(
    ("section", "values", "name"),
    [
        ("scheduler", {"policy": "slo"}, "scheduler.policy: slo"),
        ("scheduler", {"ttft_ms": 120}, "scheduler.ttft_ms"),
        ("scheduler", {"tpot_ms": 50}, "scheduler.tpot_ms"),
        ("memory", {"swap_gib": 16}, "memory.swap_gib"),
    ],
)
def test_it_is_named_with_what_to_do_instead(
    section: str, values: dict[str, object], name: str
) -> None:
    deployment = deployment_from({"model": {"path": "/m"}, section: values}, "test")
    with pytest.raises(UsageError, match=f"`{name}` is not available in this version; "):
        refuse_unavailable(deployment)


def test_the_defaults_pass() -> None:
    refuse_unavailable(deployment_from({"model": {"path": "/m"}}, "test"))
