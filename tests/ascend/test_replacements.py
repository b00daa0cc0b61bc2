"""The NPU operators that replacements call, executed by the real torch_npu on a device.

On an emulated device this shows that the calls, their arguments and their results are right; it
says nothing of the precision of real cores.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from tests import models
from tunan.ops import cpu_fallback, gelu, layer_norm, replace, rms_norm, rotary, swiglu
from tunan.ops.fallback import registered

pytestmark = pytest.mark.ascend

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


@pytest.fixture(scope="module", autouse=True)
def _device() -> None:
    import torch_npu

    assert torch_npu.npu.is_available()


def _close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.device.type == "npu"
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(actual.cpu(), expected, rtol=tolerance, atol=tolerance)


def _random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@DTYPES
@pytest.mark.parametrize("shape", [(3, 64), (2, 5, 96), (1, 1, 4096)])
def test_npu_rms_norm(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, weight = _random(*shape, dtype=dtype), _random(shape[-1], dtype=dtype)
    _close(rms_norm.npu(x.to("npu"), weight.to("npu"), 1e-6), rms_norm.reference(x, weight, 1e-6))


@DTYPES
def test_layer_norm_on_the_device(dtype: torch.dtype) -> None:
    x, weight, bias = (_random(*s, dtype=dtype) for s in ((4, 64), (64,), (64,)))
    expected = layer_norm.reference(x, weight, bias, (64,), 1e-5)
    _close(layer_norm.native(x.to("npu"), weight.to("npu"), bias.to("npu"), (64,), 1e-5), expected)


@DTYPES
@pytest.mark.parametrize("form", ["exact", "tanh", "quick"])
def test_npu_gelu(dtype: torch.dtype, form: gelu.Form) -> None:
    x = torch.linspace(-6, 6, 512).to(dtype)
    _close(gelu.npu(x.to("npu"), form), gelu.reference(x, form))


@DTYPES
@pytest.mark.parametrize("shape", [(3, 128), (2, 5, 96)])
def test_npu_swiglu(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    gate_up = _random(*shape, dtype=dtype)
    _close(swiglu.npu(gate_up.to("npu")), swiglu.reference(gate_up))


def _turn(tokens: int, size: int, dtype: torch.dtype, *, halves: bool) -> Iterator[torch.Tensor]:
    angles = torch.arange(tokens)[:, None] * torch.linspace(1, 0.01, size // 2)
    doubled = torch.cat((angles, angles), -1) if halves else angles.repeat_interleave(2, -1)
    yield doubled.cos()[None, None].to(dtype)
    yield doubled.sin()[None, None].to(dtype)


@DTYPES
def test_npu_rotary_mul_on_halves(dtype: torch.dtype) -> None:
    x = _random(2, 4, 6, 64, dtype=dtype)
    cos, sin = _turn(6, 64, dtype, halves=True)
    _close(rotary.npu_half(x.to("npu"), cos.to("npu"), sin.to("npu")), rotary.half(x, cos, sin))


@DTYPES
def test_npu_rotary_mul_on_neighbours(dtype: torch.dtype) -> None:
    x = _random(2, 4, 6, 64, dtype=dtype)
    cos, sin = _turn(6, 64, torch.float32, halves=False)
    _close(rotary.npu_pairs(x.to("npu"), cos.to("npu"), sin.to("npu")), rotary.pairs(x, cos, sin))


@DTYPES
def test_npu_interleave_rope(dtype: torch.dtype) -> None:
    x = _random(2, 4, 6, 64, dtype=dtype)
    cos, sin = _turn(6, 64, dtype, halves=True)
    _close(
        rotary.npu_to_half(x.to("npu"), cos.to("npu"), sin.to("npu")), rotary.to_half(x, cos, sin)
    )


@pytest.mark.parametrize(
    "writer",
    [
        models.write_llama,
        models.write_qwen2,
        models.write_deepseek_v2_lite,
        models.write_deepseek_v3,
    ],
)
def test_a_replaced_model_gives_the_logits_of_the_cpu(writer: Any, tmp_path: Path) -> None:
    # Attention and experts composed of matrix products: their kernels are not what is tested.
    model = AutoModelForCausalLM.from_pretrained(
        writer(tmp_path, num_hidden_layers=2), dtype=torch.float32, attn_implementation="eager"
    ).eval()
    model.config._experts_implementation = "batched_mm"
    ids = torch.arange(3, 25).reshape(2, 11)
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        replace(model, "npu")
        actual = model.to("npu")(input_ids=ids.to("npu")).logits
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-3, atol=1e-3)


class _Ranked(nn.Module):
    """A linear layer, an operator the device lacks, and another linear layer."""

    def __init__(self, operator: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)
        self.operator = operator

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(self.operator(self.first(x)))
        return result


def test_cpu_fallback_inside_a_model_on_the_device() -> None:
    seen: list[str] = []

    def bessel(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.device.type)
        result: torch.Tensor = torch.special.i0e(x)
        return result

    wrapped = cpu_fallback(bessel)
    model = _Ranked(wrapped)
    x = torch.randn(3, 8)
    with torch.no_grad():
        expected = model(x)
        _close(model.to("npu")(x.to("npu")), expected)
    assert seen == ["cpu", "cpu"]
    assert (wrapped.traffic.calls, wrapped.traffic.to_cpu_bytes) == (1, 96)


def test_a_registered_custom_operator_runs_on_the_device() -> None:
    library = torch.library.Library("tunan_test", "DEF")  # type: ignore[no-untyped-call]
    library.define("lacking(Tensor x) -> Tensor")  # type: ignore[no-untyped-call]
    library.impl("lacking", torch.neg, "CPU")  # type: ignore[no-untyped-call]
    operator = torch.ops.tunan_test.lacking
    x = torch.randn(3, 8)
    with registered(operator.default) as wrapped, torch.no_grad():
        model = _Ranked(operator)
        expected = model(x)
        _close(model.to("npu")(x.to("npu")), expected)
    assert wrapped.traffic.calls == 1
    library._destroy()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("operator", ["special_i0e", "mm", "argmax"])
def test_the_operator_list_is_what_torch_npu_registers(operator: str) -> None:
    import torch_npu

    from tunan.ops.registrations import registrations

    known = registrations(torch_npu.__version__)
    real = torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{operator}", "PrivateUse1")
    assert known.has_kernel(f"aten::{operator}") is real
