"""Stand-ins for NPU operators: torch_npu's schemas, right shapes, and gone afterwards."""

from collections.abc import Callable, Iterator

import pytest
import torch

from tunan.ops.npu_operators import available, declared
from tunan.ops.registrations import registrations

Shape = tuple[int, ...]


@pytest.fixture
def _stand_ins() -> Iterator[None]:
    with declared(registrations()):
        yield


def _meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float16, device="meta")


CALLS: list[tuple[Callable[[], torch.Tensor], Shape]] = [
    (lambda: torch.ops.npu.npu_rms_norm(_meta(2, 3, 8), _meta(8), 1e-6)[0], (2, 3, 8)),
    (lambda: torch.ops.npu.npu_rms_norm(_meta(2, 3, 8), _meta(8), 1e-6)[1], (2, 3, 1)),
    (lambda: torch.ops.npu.npu_swiglu(_meta(2, 8), -1), (2, 4)),
    (lambda: torch.ops.npu.npu_swiglu(_meta(4, 3), 0), (2, 3)),
    (lambda: torch.ops.npu.npu_gelu(_meta(5), approximate="none"), (5,)),
    (
        lambda: torch.ops.npu.npu_rotary_mul(
            _meta(1, 2, 3, 8), _meta(1, 1, 3, 8), _meta(1, 1, 3, 8), "interleave"
        ),
        (1, 2, 3, 8),
    ),
]


@pytest.mark.usefixtures("_stand_ins")
@pytest.mark.parametrize(("call", "shape"), CALLS)
def test_results_have_the_devices_shapes(call: Callable[[], torch.Tensor], shape: Shape) -> None:
    assert call().shape == shape


@pytest.mark.usefixtures("_stand_ins")
def test_a_call_that_does_not_fit_the_schema_is_refused() -> None:
    with pytest.raises(RuntimeError, match="npu_rms_norm"):
        torch.ops.npu.npu_rms_norm(_meta(2, 8), _meta(8), 1e-6, True)


@pytest.mark.skipif(available(), reason="torch_npu is installed here")
def test_they_are_gone_afterwards() -> None:
    with declared(registrations()):
        assert available()
    assert not available()
