"""Packed experts as vLLM's modules carry them, without vLLM."""

from pathlib import Path

import pytest
import torch

from tests.kernels.experts import Weights, one_by_one, routes, tokens
from tests.kernels.experts import weights as experts_of
from tests.models import write_llama
from tunan.engine.cpu.packed_experts import ExpertsForm, attach, find, make, mixture_of
from tunan.engine.cpu.packed_file import PackedWeights
from tunan.engine.cpu.packed_linear import Form
from tunan.engine.cpu.sidecar import Packing, Sidecar
from tunan.errors import CheckFailedError
from tunan.kernels.linear import layout_key

EXPERTS, HIDDEN, INNER = 3, 128, 64
GROUPS = {"w8": 0, "w4g32": 32}


@pytest.fixture
def sidecar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sidecar:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    checkpoint = write_llama(tmp_path / "model", num_hidden_layers=1)
    return Sidecar.of(checkpoint, Packing(layout_key(), 1, 0, "test"))


def plain(form: str, outputs: int, inputs: int) -> tuple[Weights, ExpertsForm]:
    group = GROUPS[form]
    each = Form(outputs, inputs, 4 if group else 8, group)
    return experts_of(form, EXPERTS, outputs, inputs, seed=outputs), ExpertsForm(
        EXPERTS, each, "all"
    )


def made(
    sidecar: Sidecar, name: str, weights: Weights, form: ExpertsForm
) -> tuple[PackedWeights, ExpertsForm]:
    return make(sidecar, name, form, weights.values, weights.scales), form


def mixture(sidecar: Sidecar, form: str) -> tuple[torch.nn.Module, Weights, Weights]:
    gate_up, down = plain(form, 2 * INNER, HIDDEN), plain(form, HIDDEN, INNER)
    module = torch.nn.Module()
    attach(module, made(sidecar, "gate_up", *gate_up), made(sidecar, "down", *down))
    return module, gate_up[0], down[0]


@pytest.mark.parametrize("form", GROUPS)
def test_a_mixture_computes_what_its_weights_say(sidecar: Sidecar, form: str) -> None:
    module, gate_up, down = mixture(sidecar, form)
    found = mixture_of(module)
    assert found is not None
    x, given = tokens(9, HIDDEN), routes(9, 2, EXPERTS)
    assert torch.equal(found(x, *given), one_by_one(x, *given, gate_up.packed, down.packed))


def test_it_is_found_again(sidecar: Sidecar) -> None:
    weights, form = plain("w4g32", 2 * INNER, HIDDEN)
    first = make(sidecar, "layer", form, weights.values, weights.scales)
    found = find(sidecar, "layer", form)
    assert found is not None
    assert torch.equal(found.data, first.data)
    assert sidecar.report() == "packed weights: 1 mapped, 1 made"


def test_other_experts_of_the_same_shape_are_not_taken_for_these(sidecar: Sidecar) -> None:
    weights, form = plain("w8", 2 * INNER, HIDDEN)
    make(sidecar, "layer", form, weights.values, weights.scales)
    assert find(sidecar, "layer", ExpertsForm(EXPERTS, form.each, "every third of 9")) is None


def test_one_expert_of_another_form_spoils_all(sidecar: Sidecar) -> None:
    weights, form = plain("w8", 2 * INNER, HIDDEN)
    packed = make(sidecar, "layer", form, weights.values, weights.scales)
    other = experts_of("w8", 1, 2 * INNER, HIDDEN - 1, seed=1).packed.data
    last = packed.data[2 * packed.data.numel() // EXPERTS :]
    last[: len(other)] = other[: len(last)]
    assert not form.fits(packed.data)
    with pytest.raises(CheckFailedError, match="packed weights are Form"):
        attach(torch.nn.Module(), (packed, form), (packed, form))


def test_a_mixture_can_be_traced_whole(sidecar: Sidecar) -> None:
    found = mixture_of(mixture(sidecar, "w8")[0])
    assert found is not None
    x, given = tokens(5, HIDDEN), routes(5, 2, EXPERTS)
    torch.compiler.reset()
    compiled = torch.compile(found, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x, *given), found(x, *given))
