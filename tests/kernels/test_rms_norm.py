"""RMS norm against float64, and against vLLM's own, bit for bit where the order of sums allows."""

from importlib import import_module

import pytest
import torch

from tests.kernels.isas import in_one_isa
from tunan.errors import UsageError
from tunan.kernels.linear import quantize
from tunan.kernels.norm import rms_norm, rms_norm_quantized

pytestmark = pytest.mark.usefixtures("isa")

# Two roundings to the type.
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}
by_dtype = pytest.mark.parametrize("dtype", ROUNDING, ids=str)
SIZES = [1, 16, 31, 5633]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def normed(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """float64"""
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * weight.double()


@by_dtype
@pytest.mark.parametrize("size", SIZES)
def test_norm(size: int, dtype: torch.dtype) -> None:
    x, weight = normal(5, size).to(dtype), normal(size, seed=1).to(dtype)
    result = rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(
        result.double(), normed(x, weight, 1e-5), rtol=ROUNDING[dtype], atol=1e-7
    )


@by_dtype
@pytest.mark.parametrize("size", SIZES)
def test_the_residual_becomes_the_sum_and_its_norm_is_of_the_unrounded_sum(
    size: int, dtype: torch.dtype
) -> None:
    x, residual, weight = (
        normal(*s, seed=i).to(dtype) for i, s in enumerate([(3, size)] * 2 + [(size,)])
    )
    total = x.float() + residual.float()
    result = rms_norm(x, weight, 1e-5, residual)
    assert torch.equal(residual, total.to(dtype))
    torch.testing.assert_close(
        result.double(), normed(total, weight, 1e-5), rtol=ROUNDING[dtype], atol=1e-7
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("with_residual", [False, True])
def test_the_same_as_vllm(with_residual: bool, dtype: torch.dtype) -> None:
    layernorm = import_module("vllm.ir.ops.layernorm")
    x, weight = normal(64, 2048).to(dtype), normal(2048, seed=1).to(dtype)
    residual = normal(64, 2048, seed=2).to(dtype) if with_residual else None
    if residual is None:
        theirs = layernorm.rms_norm.impls["native"].impl_fn(x, weight, 1e-5)
    else:
        native = layernorm.fused_add_rms_norm.impls["native"].impl_fn
        theirs, their_residual = native(x.clone(), residual.clone(), weight, 1e-5)
    ours = rms_norm(x, weight, 1e-5, residual)
    if residual is not None:
        assert torch.equal(residual, their_residual)
    # The sum of squares is taken in another order: a last bit may differ here and there.
    torch.testing.assert_close(ours, theirs, rtol=ROUNDING[dtype], atol=0)
    assert float((ours != theirs).float().mean()) < (1.0 if dtype == torch.float32 else 1e-3)


@by_dtype
@pytest.mark.parametrize("size", [1, 33, 576])
def test_quantised_at_once_is_the_same_as_quantised_after(size: int, dtype: torch.dtype) -> None:
    x, weight = normal(9, size).to(dtype), normal(size, seed=1).to(dtype)
    residual, other = (normal(9, size, seed=2).to(dtype) for _ in range(2))
    fused = rms_norm_quantized(x, weight, 1e-5, residual)
    apart = quantize(rms_norm(x, weight, 1e-5, other))
    assert torch.equal(residual, other)
    assert torch.equal(fused.values, apart.values)
    assert torch.equal(fused.scales, apart.scales)
    assert torch.equal(fused.sums, apart.sums)


def test_in_place_and_parts_of_wider_rows() -> None:
    wide, weight = normal(4, 100), normal(64, seed=1)
    expected = rms_norm(wide[:, 8:72].contiguous(), weight, 1e-6)
    untouched = wide.clone()
    rms_norm(wide[:, 8:72], weight, 1e-6, out=wide[:, 8:72])
    assert torch.equal(wide[:, 8:72], expected)
    untouched[:, 8:72] = expected
    assert torch.equal(wide, untouched)


@in_one_isa
def test_without_a_weight_or_rows() -> None:
    x = normal(3, 64)
    assert torch.equal(rms_norm(x, None, 1e-6), rms_norm(x, torch.ones(64), 1e-6))
    assert rms_norm(x[:0], None, 1e-6).shape == (0, 64)


def test_the_same_bits_for_every_number_of_threads_and_in_every_instruction_set(
    threads: int,
) -> None:
    from tunan.kernels import PoolConfig, configure_pool, select_isa, selected_isa

    x, weight = normal(40, 2048).to(torch.bfloat16), normal(2048, seed=1).to(torch.bfloat16)
    result, isa = rms_norm(x, weight, 1e-5), selected_isa()
    configure_pool(PoolConfig(threads=1))
    select_isa("scalar")
    assert torch.equal(rms_norm(x, weight, 1e-5), result)
    assert torch.equal(rms_norm(x[3:4], weight, 1e-5), result[3:4])
    select_isa(isa)
    assert threads


@in_one_isa
@pytest.mark.parametrize(
    ("x", "weight", "residual", "message"),
    [
        (torch.zeros(2, 8), torch.zeros(7), None, "the weight is"),
        (torch.zeros(2, 8), torch.zeros(8).half(), None, "the weight is"),
        (torch.zeros(2, 8), None, torch.zeros(2, 9), "the residual is"),
        (torch.zeros(2, 8), None, torch.zeros(2, 8).half(), "the residual is"),
        (torch.zeros(8), None, None, "x is"),
        (torch.zeros(2, 8).double(), None, None, "float64"),
        (torch.zeros(8, 2).T, None, None, "in pieces"),
        (torch.zeros(1, 8).expand(2, 8), None, None, "rows overlap"),
        (torch.zeros(2, 0), None, None, "2 rows of 0"),
    ],
)
def test_what_does_not_fit_is_refused(
    x: torch.Tensor, weight: torch.Tensor | None, residual: torch.Tensor | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        rms_norm(x, weight, 1e-5, residual)
