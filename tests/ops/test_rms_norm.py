"""RMSNorm: the formula, the backends, and what is recognised as one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tunan.ops import rms_norm

EPSILON = 1e-6
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


class ScaledRMSNorm(nn.Module):
    """Multiplies by 1 + weight, as Gemma's does."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.eps = EPSILON

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm.reference(x, 1 + self.weight, self.eps)


def test_the_reference_gives_rows_a_mean_square_of_one() -> None:
    x = torch.randn(5, 64, dtype=torch.float64).float() * 7
    normed = rms_norm.reference(x, torch.ones(64), 0.0)
    torch.testing.assert_close(normed.pow(2).mean(-1), torch.ones(5))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 9), size=st.integers(2, 300), seed=st.integers(0, 999))
def test_the_cpu_backend_agrees_with_the_reference(
    dtype: torch.dtype, rows: int, size: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, rows, size, generator=generator).to(dtype)
    weight = torch.randn(size, generator=generator).to(dtype)
    torch.testing.assert_close(
        rms_norm.cpu(x, weight, EPSILON),
        rms_norm.reference(x, weight, EPSILON),
        rtol=TOLERANCE[dtype],
        atol=TOLERANCE[dtype],
    )


def test_the_parameter_itself_is_kept() -> None:
    module = nn.RMSNorm(8, eps=1e-5)
    replaced = rms_norm.replacement(module, "cpu")
    assert isinstance(replaced, rms_norm.RMSNorm)
    assert replaced.weight is module.weight
    assert replaced.epsilon == 1e-5


def test_a_norm_that_adds_one_to_its_weight_is_left_alone() -> None:
    assert rms_norm.replacement(ScaledRMSNorm(16), "cpu") == "computes something else than RMSNorm"


def test_another_module_is_none_of_its_business() -> None:
    assert rms_norm.replacement(nn.Linear(2, 2), "cpu") is None
