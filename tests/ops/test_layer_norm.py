"""LayerNorm: the formula against torch's own, and what is replaced."""

from typing import Any

import pytest
import torch
from torch import nn

from tunan.ops import layer_norm

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [(64,), (3, 32)])
@pytest.mark.parametrize("affine", [True, False])
def test_the_reference_agrees_with_torch(
    dtype: torch.dtype, shape: tuple[int, ...], affine: bool
) -> None:
    torch.manual_seed(0)
    module = nn.LayerNorm(shape, elementwise_affine=affine, dtype=dtype)
    if affine:
        nn.init.normal_(module.weight)
        nn.init.normal_(module.bias)
    x = torch.randn(4, *shape).to(dtype) * 3 + 1
    replaced = layer_norm.replacement(module, "reference")
    assert isinstance(replaced, layer_norm.LayerNorm)
    torch.testing.assert_close(replaced(x), module(x), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_a_layer_norm_with_its_own_forward_is_left_alone() -> Any:
    class Twice(nn.LayerNorm):
        def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
            return 2 * super().forward(input)

    assert "forward of its own" in str(layer_norm.replacement(Twice(4), "cpu"))
