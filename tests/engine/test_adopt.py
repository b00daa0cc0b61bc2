import pytest
import torch
from torch import nn

from tunan.engine.adopt import SMALLEST_ADOPTED, adopt

LARGE = SMALLEST_ADOPTED // 2


def parameter(*shape: int, dtype: torch.dtype = torch.bfloat16) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=False)


def test_a_parameter_becomes_the_tensor_and_copying_it_again_changes_nothing() -> None:
    target, tensor = parameter(2, LARGE), torch.randn(2, LARGE).to(torch.bfloat16)
    before = tensor.clone()
    assert adopt(target, tensor)
    target.data.narrow(0, 0, 2).copy_(tensor)
    assert target.data_ptr() == tensor.data_ptr()
    assert torch.equal(target, before)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2, LARGE, dtype=torch.float32),
        torch.ones(1, LARGE, dtype=torch.bfloat16),
        torch.ones(2, LARGE, dtype=torch.bfloat16, device="meta"),
    ],
)
def test_another_dtype_shape_or_device_is_left_alone(tensor: torch.Tensor) -> None:
    target = parameter(2, LARGE)
    assert not adopt(target, tensor)
    assert target.count_nonzero() == 0


def test_a_small_tensor_is_not_worth_a_mapping() -> None:
    assert not adopt(parameter(8), torch.ones(8, dtype=torch.bfloat16))
