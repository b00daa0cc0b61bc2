"""SwiGLU against float64, and against vLLM's own."""

from importlib import import_module

import pytest
import torch

from tests.kernels.isas import in_one_isa
from tunan.errors import UsageError
from tunan.kernels.linear import quantize
from tunan.kernels.norm import swiglu, swiglu_quantized

pytestmark = pytest.mark.usefixtures("isa")

# Two roundings to the type.
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}
by_dtype = pytest.mark.parametrize("dtype", ROUNDING, ids=str)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@by_dtype
@pytest.mark.parametrize("size", [1, 16, 33, 5632])
def test_swiglu(size: int, dtype: torch.dtype) -> None:
    x = (4 * normal(5, 2 * size)).to(dtype)
    gate, up = x.double().chunk(2, -1)
    torch.testing.assert_close(
        swiglu(x).double(), gate * gate.sigmoid() * up, rtol=ROUNDING[dtype], atol=1e-6
    )


def test_far_gates() -> None:
    gate = torch.tensor([-1e30, -200.0, -88.0, -20.0, 0.0, 20.0, 88.0, 1e30])
    x = torch.cat([gate, torch.ones(8)])[None]
    torch.testing.assert_close(
        swiglu(x)[0].double(), torch.nn.functional.silu(gate.double()), rtol=2e-6, atol=1e-30
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_same_as_vllm(dtype: torch.dtype) -> None:
    activation = import_module("vllm.model_executor.layers.activation")
    x = (3 * normal(64, 4096)).to(dtype)
    ours, theirs = swiglu(x), activation.SiluAndMul.forward_native(x)
    torch.testing.assert_close(ours, theirs, rtol=ROUNDING[dtype], atol=1e-6)
    assert float((ours != theirs).float().mean()) < (1.0 if dtype == torch.float32 else 1e-3)


@by_dtype
@pytest.mark.parametrize("size", [1, 33, 1536])
def test_quantised_at_once_is_the_same_as_quantised_after(size: int, dtype: torch.dtype) -> None:
    x = normal(9, 2 * size).to(dtype)
    fused, apart = swiglu_quantized(x), quantize(swiglu(x))
    assert torch.equal(fused.values, apart.values)
    assert torch.equal(fused.scales, apart.scales)
    assert torch.equal(fused.sums, apart.sums)


def test_the_same_bits_for_every_number_of_threads(threads: int) -> None:
    x = normal(40, 3000).to(torch.bfloat16)
    assert torch.equal(swiglu(x)[7], swiglu(x[7:8])[0])
    assert threads


@in_one_isa
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, 7), "as many values"),
        (torch.zeros(8), "x is"),
        (torch.zeros(2, 8, dtype=torch.int8), "int8"),
        (torch.zeros(2, 0), "2 rows of 0"),
    ],
)
def test_what_does_not_fit_is_refused(x: torch.Tensor, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        swiglu(x)
