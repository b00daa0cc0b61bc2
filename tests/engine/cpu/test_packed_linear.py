"""Packed layers as vLLM's modules carry them, without vLLM."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models import write_llama
from tunan.engine.cpu import head
from tunan.engine.cpu.packed_file import PackedWeights
from tunan.engine.cpu.packed_linear import Form, PackedLayer, attach, find, make, packed_of
from tunan.engine.cpu.sidecar import Packing, Sidecar
from tunan.errors import CheckFailedError
from tunan.kernels.linear import layout_key

OUTPUTS, INPUTS, GROUP = 48, 128, 32


@pytest.fixture
def sidecar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sidecar:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    checkpoint = write_llama(tmp_path / "model", num_hidden_layers=1)
    return Sidecar.of(checkpoint, Packing(layout_key(), 1, 0, "vllm 1"))


def weights(form: Form) -> tuple[torch.Tensor, torch.Tensor]:
    """Integers and their scales, as a checkpoint has them."""
    generator = torch.Generator().manual_seed(0)
    largest = 8 if form.bits == 4 else 128
    shape = (form.outputs, form.inputs)
    values = torch.randint(-largest, largest, shape, generator=generator, dtype=torch.int8)
    groups = form.inputs // form.group if form.group else 1
    scales = torch.rand(form.outputs, groups, generator=generator) + 0.5
    return values, scales.to(torch.bfloat16)


def layer(sidecar: Sidecar, form: Form, bias: torch.Tensor | None = None) -> PackedLayer:
    values, scales = weights(form)
    module = torch.nn.Module()
    attach(module, make(sidecar, "layer", form, values, scales), form, bias)
    found = packed_of(module)
    assert found is not None
    return found


@pytest.mark.parametrize("form", [Form(OUTPUTS, INPUTS, 8, 0), Form(OUTPUTS, INPUTS, 4, GROUP)])
def test_a_layer_computes_what_its_weights_say(sidecar: Sidecar, form: Form) -> None:
    values, scales = weights(form)
    bias = torch.randn(OUTPUTS)
    x = torch.randn(5, INPUTS)
    spread = scales.float().repeat_interleave(INPUTS // scales.shape[1], dim=1)
    exact = x @ (values.float() * spread).T + bias
    found = layer(sidecar, form, bias)
    assert torch.allclose(found(x, add_bias=True), exact, atol=0.05 * float(exact.std()))
    assert torch.allclose(
        found(x, add_bias=False) + bias, found(x, add_bias=True), atol=1e-3, rtol=1e-5
    )


def test_scales_that_float16_holds_are_kept_in_it(sidecar: Sidecar) -> None:
    form = Form(OUTPUTS, INPUTS, 4, GROUP)
    values, scales = weights(form)
    small = make(sidecar, "small", form, values, scales)
    large = make(sidecar, "large", form, values, scales.float() * 1e-6)
    assert small.data.numel() == form.bytes("f16") < large.data.numel() == form.bytes("f32")


@pytest.mark.parametrize("factor", [1.0, 1e-6], ids=["float16", "float32"])
def test_it_is_found_again_whatever_its_scales_were_kept_in(
    sidecar: Sidecar, factor: float
) -> None:
    form = Form(OUTPUTS, INPUTS, 4, GROUP)
    values, scales = weights(form)
    made = make(sidecar, "layer", form, values, scales.float() * factor)
    found = find(sidecar, "layer", form)
    assert found is not None
    assert torch.equal(found.data, made.data)
    assert sidecar.report() == "packed weights: 1 mapped, 1 made"
    assert sidecar.report() == "packed weights: 0 mapped, 0 made"


def test_a_file_with_the_right_hash_of_another_form_is_packed_again(sidecar: Sidecar) -> None:
    form, wider = Form(OUTPUTS, INPUTS, 8, 0), Form(OUTPUTS * 64, INPUTS, 8, 0)
    values, scales = weights(form)
    made = make(sidecar, "layer", form, values, scales)
    hostile = made.data.clone()

    def fill(out: torch.Tensor) -> None:
        out.copy_(hostile)

    # Says that it has 64 times the outputs, and as many bytes as that takes or as there are.
    hostile[32:40] = torch.tensor([wider.outputs]).view(torch.uint8)
    for size in (wider.bytes("f32"), form.bytes("f32")):
        hostile[48:56] = torch.tensor([size]).view(torch.uint8)
        sidecar.make("layer", form.name("f32"), form.bytes("f32"), fill)
        assert find(sidecar, "layer", form) is None
    with pytest.raises(CheckFailedError, match="contradicts itself"):
        attach(torch.nn.Module(), PackedWeights(hostile, None), form, None)
    with pytest.raises(CheckFailedError, match="packed weights are"):
        attach(torch.nn.Module(), made, replace(form, outputs=OUTPUTS - 1), None)


def test_a_layer_can_be_traced_whole(sidecar: Sidecar) -> None:
    found = layer(sidecar, Form(OUTPUTS, INPUTS, 8, 0), torch.randn(OUTPUTS))
    traced = torch.compile(lambda x: found(x, add_bias=True) + 1, backend="eager", fullgraph=True)
    x = torch.randn(3, INPUTS, dtype=torch.bfloat16)
    assert torch.equal(traced(x), found(x, add_bias=True) + 1)


def test_a_head_is_made_int8_once_and_then_mapped(sidecar: Sidecar) -> None:
    x, weight = torch.randn(4, INPUTS), torch.randn(5000, INPUTS)
    logits = []
    for _ in range(2):
        module: Any = torch.nn.Linear(INPUTS, 5000, bias=False)
        module.weight.data = weight
        assert head.refusal(module) is None
        head.quantise(module, sidecar)
        logits.append(module.quant_method.apply(module, x))
        assert head.refusal(module) == "it is int8 in the checkpoint"
    exact = x @ weight.T
    assert torch.equal(*logits)
    assert float((logits[0] - exact).norm() / exact.norm()) < 0.02
    assert sidecar.report() == "packed weights: 1 mapped, 1 made"


def test_a_head_that_is_elsewhere_stays(sidecar: Sidecar) -> None:
    assert head.refusal(torch.nn.Identity()) == "it has no plain weights here"


def test_a_plain_module_carries_none() -> None:
    assert packed_of(torch.nn.Linear(2, 2)) is None
