"""Mixed precision: the layers that int4 costs most are held in int8, within the bits allowed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoint.sources import run_conversion
from tests.models import write_llama
from tests.quantised import load_blocks
from tunan.checkpoint.convert import ConvertOptions
from tunan.checkpoint.manifest import Manifest
from tunan.checkpoint.quantize.fitted_source import FittedSource
from tunan.checkpoint.quantize.fitting import fit
from tunan.checkpoint.quantize.gptq import what_is_left
from tunan.checkpoint.quantize.kv_cache import Calibration
from tunan.checkpoint.quantize.mixing import Candidate, choose, finer_tensors
from tunan.checkpoint.quantize.rounding import restored
from tunan.checkpoint.quantize.running import run_source
from tunan.checkpoint.quantize.scheme import QUANTISATIONS, Quantisation
from tunan.checkpoint.source import open_source

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

W4A8 = QUANTISATIONS["w4a8"]
INT4 = W4A8.weights
TEXT = "The fish is called Kun, and nobody knows how many thousand li it measures. " * 20
BITS = 5.0


@pytest.fixture
def text(tmp_path: Path) -> Calibration:
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    return Calibration(file)


def candidate(name: str, loss: float, weights: int = 100) -> Candidate:
    return Candidate((name,), weights, 4.5 * weights, 8.0 * weights, loss)


def mixed(source: Path, out: Path, text: Calibration) -> FittedSource:
    fitted = fit(open_source(source), INT4, text, average_bits=BITS)
    chosen = replace(W4A8, fitted_on=text.name, finer=fitted.fitted.finer, average_bits=BITS)
    options = ConvertOptions(quantisation=chosen, integers=fitted.fitted.integers)
    run_conversion(fitted, out, options)
    return fitted


def test_what_saves_the_most_for_a_bit_is_chosen_while_bits_are_left() -> None:
    found = [
        candidate("large", loss=4, weights=400),
        candidate("best", loss=3),
        candidate("worst", loss=0.1),
        candidate("second", loss=2),
    ]
    allowed = 4.5 + 3.5 * 200 / 700  # two of the small ones
    assert choose(found, allowed) == {"best", "second"}
    assert choose(found, 4.5) == set()
    assert choose(found, 8) == {"large", "best", "worst", "second"}


def test_what_does_not_fit_leaves_its_bits_to_the_next() -> None:
    found = [candidate("large", loss=90, weights=400), candidate("small", loss=1)]
    assert choose(found, 5.5) == {"small"}


def test_a_layer_that_more_depends_on_is_chosen_first(tmp_path: Path) -> None:
    directory = write_llama(tmp_path / "source")
    tensors = load_file(directory / "model.safetensors")
    for layer in (0, 2):  # whose outputs now change little
        tensors[f"model.layers.{layer}.mlp.down_proj.weight"] *= 0.01
    tensors["model.layers.1.mlp.down_proj.weight"] *= 4
    save_file(tensors, directory / "model.safetensors")
    running = run_source(open_source(directory))
    found = finer_tensors(running, TEXT, INT4, 6.5)
    assert "model.layers.1.mlp.down_proj.weight" in found
    assert "model.layers.0.mlp.down_proj.weight" not in found
    assert "model.layers.2.mlp.down_proj.weight" not in found


def test_layers_that_engines_fuse_share_a_scheme(text: Calibration, tmp_path: Path) -> None:
    running = run_source(open_source(write_llama(tmp_path / "source")))
    for bits in (5.0, 6.0, 7.0):
        found = finer_tensors(running, text.text, INT4, bits)
        assert found
        for parts in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
            layers = [
                {name.split(".")[2] for name in found if f".{part}." in name} for part in parts
            ]
            assert all(each == layers[0] for each in layers)


def test_the_checkpoint_takes_no_more_bits_than_allowed(text: Calibration, tmp_path: Path) -> None:
    fitted = mixed(write_llama(tmp_path / "source"), tmp_path / "out", text)
    bits = weights = 0
    for name, (integers, scales) in fitted.fitted.integers.items():
        finer = name in fitted.fitted.finer
        bits += integers.numel() * (8 if finer else 4) + scales.numel() * (32 if finer else 16)
        weights += integers.numel()
    assert 4.5 < bits / weights <= BITS


def test_the_checkpoint_holds_both_and_says_which(text: Calibration, tmp_path: Path) -> None:
    fitted = mixed(write_llama(tmp_path / "source"), tmp_path / "out", text)
    finer, stored = fitted.fitted.finer, load_blocks(tmp_path / "out")
    assert 0 < len(finer) < len(fitted.fitted.integers)
    for name, (integers, scales) in fitted.fitted.integers.items():
        assert torch.equal(stored[name], integers)
        kept = restored(stored[name], stored[f"{name}_scale"])
        assert torch.equal(kept, restored(integers, scales))
        assert scales.shape[1] == (1 if name in finer else integers.shape[1] // 32)
    layers = sorted(name.removesuffix(".weight") for name in finer)
    groups = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"][
        "config_groups"
    ]
    assert groups["group_0"]["targets"] == ["Linear"]
    assert groups["group_0"]["weights"]["num_bits"] == 4
    assert sorted(groups["group_1"]["targets"]) == layers
    assert groups["group_1"]["weights"]["num_bits"] == 8
    assert groups["group_1"]["weights"]["strategy"] == "channel"
    told = Manifest.read(tmp_path / "out").quantization
    assert told is not None
    assert (sorted(told.int8_layers), told.average_bits) == (layers, BITS)
    assert f"{len(layers)} layers in int8, up to 5 bits a weight" in told.weights


def test_a_mixed_model_is_nearer_to_its_source_than_one_of_int4(
    text: Calibration, tmp_path: Path
) -> None:
    source = write_llama(tmp_path / "source")
    divergence = []
    for bits in (None, 6.5):
        fitted = fit(open_source(source), INT4, text, average_bits=bits)
        chosen = Quantisation("w4a8", INT4, text.name, finer=fitted.fitted.finer, average_bits=bits)
        options = ConvertOptions(quantisation=chosen, integers=fitted.fitted.integers, report=True)
        quality = run_conversion(fitted, tmp_path / f"out{bits}", options).manifest.quality
        assert quality is not None
        divergence.append(quality.kl_divergence)
    assert divergence[1] < 0.8 * divergence[0]


def test_what_gptq_makes_up_for_counts_less() -> None:
    generator = torch.Generator().manual_seed(0)
    own = torch.randn(4000, 32, generator=generator)
    alone = what_is_left(own.T @ own / 4000, 4000)
    together = own.clone()
    together[:, 1:] = own[:, :1] + 0.1 * own[:, 1:]  # nearly the same input 32 times
    hessian = together.T @ together / 4000
    left = what_is_left(hessian, 4000)
    torch.testing.assert_close(alone, torch.ones(32), rtol=0.15, atol=0)
    assert bool((left <= hessian.diagonal() * 1.001).all())
    assert float(left.sum()) < 0.2 * float(hessian.diagonal().sum())
