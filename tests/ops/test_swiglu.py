"""SwiGLU: the formula, the joined weights, and which MLPs are not one."""

import pytest
import torch
from torch import nn

from tunan.ops import swiglu

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


class Mlp(nn.Module):
    """The shape of every family's MLP."""

    def __init__(self, activation: nn.Module, *, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(16, 24, bias=bias)
        self.up_proj = nn.Linear(16, 24, bias=bias)
        self.down_proj = nn.Linear(24, 16, bias=bias)
        self.act_fn = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gated: torch.Tensor = self.act_fn(self.gate_proj(x)) * self.up_proj(x)
        down: torch.Tensor = self.down_proj(gated)
        return down


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_replaced_mlp_computes_the_same(dtype: torch.dtype, bias: bool, backend: str) -> None:
    torch.manual_seed(0)
    module = Mlp(nn.SiLU(), bias=bias).to(dtype)
    x = torch.randn(3, 5, 16).to(dtype)
    expected = module(x)
    replaced = swiglu.replacement(module, backend)
    assert isinstance(replaced, swiglu.SwiGLU)
    torch.testing.assert_close(replaced(x), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_the_gate_comes_first() -> None:
    gate_up = torch.tensor([[0.0, 2.0, 3.0, 5.0]])
    expected = torch.tensor([[0.0, 2.0 / (1 + torch.exp(torch.tensor(-2.0))) * 5.0]])
    torch.testing.assert_close(swiglu.reference(gate_up), expected)


def test_another_activation_is_left_alone() -> None:
    assert "not SiLU" in str(swiglu.replacement(Mlp(nn.GELU()), "cpu"))


def test_layers_that_are_not_plain_linear_are_left_alone() -> None:
    class Quantised(nn.Linear):
        pass

    module = Mlp(nn.SiLU())
    module.up_proj = Quantised(16, 24, bias=False)
    assert "not plain Linear" in str(swiglu.replacement(module, "cpu"))
