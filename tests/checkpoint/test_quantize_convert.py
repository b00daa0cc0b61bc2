"""Quantised conversions of real files: the bytes, whatever they are made from."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoint.sources import Recorder, run_conversion
from tests.checkpoint.test_memory import CONFIG, IDLE, peak_while
from tests.gguf_files import write_gguf
from tests.models import write_deepseek_v2_lite, write_deepseek_v3, write_llama, write_qwen2
from tunan.checkpoint.architectures import expected_tensors
from tunan.checkpoint.convert import ConvertOptions
from tunan.checkpoint.manifest import Manifest
from tunan.checkpoint.parallel import fused_parameters
from tunan.checkpoint.quantize.rounding import restored, round_to_scales, scales_of
from tunan.checkpoint.quantize.scheme import QUANTISATIONS
from tunan.checkpoint.quantize.which_layers import is_quantised
from tunan.checkpoint.source import open_source
from tunan.checkpoint.verify import verify
from tunan.errors import CheckFailedError

W8A8 = QUANTISATIONS["w8a8"]
OPTIONS = ConvertOptions(quantisation=W8A8, block_bytes=300_000, workers=1, name="same")

KILLED = """
import os, signal, sys
from pathlib import Path
from tests.checkpoint.sources import Recorder, run_conversion
from tests.checkpoint.test_quantize_convert import OPTIONS

def kill(done):
    if done > 1_000_000:
        os.kill(os.getpid(), signal.SIGKILL)

run_conversion(Path(sys.argv[1]), Path(sys.argv[2]), OPTIONS, Recorder(on_advance=kill))
"""
CONVERT = IDLE + (
    "import sys; from tests.checkpoint.test_quantize_convert import W8A8;"
    "run_conversion(Path(sys.argv[1]), Path(sys.argv[2]), ConvertOptions(quantisation=W8A8))"
)


def blocks_of(directory: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def check_quantised(source: Path, converted: Path) -> int:
    """Every tensor of a conversion against the rows of its source; counts the quantised ones."""
    opened, stored = open_source(source), blocks_of(converted)
    count = 0
    for name, info in opened.tensors.items():
        rows = opened.rows(name, 0, info.shape[0])
        if not is_quantised(opened.config, name, info.shape):
            assert f"{name}_scale" not in stored
            assert not stored[name].dtype.is_floating_point or torch.equal(
                stored[name], rows.to(stored[name].dtype)
            )
            continue
        count += 1
        scales = scales_of(rows, W8A8.weights)
        assert stored[f"{name}_scale"].shape == (info.shape[0], 1)
        assert torch.equal(stored[f"{name}_scale"], scales)
        assert torch.equal(stored[name], round_to_scales(rows, scales, W8A8.weights))
    assert set(stored) >= set(opened.tensors)
    return count


@pytest.mark.parametrize("family", ["llama", "qwen2", "deepseek-v2", "fp8", "gguf", "bin"])
def test_every_kind_of_source_is_rounded_from_its_own_values(family: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    if family == "qwen2":
        write_qwen2(source)
    elif family == "deepseek-v2":
        write_deepseek_v2_lite(source)
    elif family == "fp8":
        write_deepseek_v3(source, fp8=True, mtp=True)
    else:
        write_llama(source)
    if family == "gguf":
        source = write_gguf(tmp_path / "model.gguf", source, gguf.GGMLQuantizationType.Q8_0)
    if family == "bin":
        tensors = load_file(source / "model.safetensors")
        (source / "model.safetensors").unlink()
        torch.save(tensors, source / "pytorch_model.bin")
    outcome = run_conversion(source, tmp_path / "out", OPTIONS)
    count = check_quantised(source, tmp_path / "out")
    assert outcome.manifest.quantization is not None
    assert outcome.manifest.quantization.quantised_weights == count > 10
    assert verify(tmp_path / "out", outcome.manifest, 1, lambda size: None) == []


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("family", ["llama", "deepseek-v3"])
def test_a_rank_has_its_part_of_the_same_integers_and_scales(
    family: str, degree: int, tmp_path: Path
) -> None:
    write = write_llama if family == "llama" else write_deepseek_v3
    source = write(tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    run_conversion(source, tmp_path / "out", replace(OPTIONS, tensor_parallel=degree))
    plain = blocks_of(tmp_path / "out")
    for rank in range(degree):
        mine = blocks_of(tmp_path / f"out/tensor-parallel-{degree}/rank-{rank}")
        for parameter in fused_parameters(config, degree, rank):
            scale_name = f"{parameter.name}_scale"
            parts = [part for part in parameter.parts if part.tensor is not None]
            quantised = f"{parts[0].tensor}_scale" in plain
            assert (scale_name in mine) == quantised
            if not quantised:
                continue
            whole = [plain[str(part.tensor)][part.start : part.stop] for part in parts]
            cut = [
                w if p.columns is None else w[:, slice(*p.columns)]
                for w, p in zip(whole, parts, strict=True)
            ]
            assert torch.equal(mine[parameter.name].flatten(0, -2), torch.cat(cut))
            scales = [plain[f"{part.tensor}_scale"][part.start : part.stop] for part in parts]
            assert mine[scale_name].shape == (*parameter.shape[:-1], 1)
            assert torch.equal(mine[scale_name].flatten(0, -2), torch.cat(scales))


def test_a_killed_conversion_is_continued_to_the_same_bytes_and_figures(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "source")
    whole = run_conversion(source, tmp_path / "whole", OPTIONS).manifest
    command = [sys.executable, "-c", KILLED, str(source), str(tmp_path / "out")]
    killed = subprocess.run(command, cwd=Path(__file__).parents[2], check=False)
    assert killed.returncode == -signal.SIGKILL
    outcome = run_conversion(source, tmp_path / "out", OPTIONS)
    assert outcome.reused > 0
    assert outcome.manifest == whole


def test_another_way_of_rounding_starts_over(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "source")

    def interrupt(done: int) -> None:
        if done > 1_000_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_conversion(source, tmp_path / "out", OPTIONS, Recorder(on_advance=interrupt))
    plain = replace(W8A8, weights=replace(W8A8.weights, clipping=False))
    outcome = run_conversion(source, tmp_path / "out", replace(OPTIONS, quantisation=plain))
    assert (outcome.reused, outcome.restarted) == (0, True)


def test_the_manifest_tells_the_error_of_each_weight(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    worst = "model.layers.1.mlp.up_proj.weight"
    tensors[worst][:, 0] *= 300  # leaves few steps for the others
    save_file(tensors, source / "model.safetensors")
    run_conversion(source, tmp_path / "out", OPTIONS)
    told = Manifest.read(tmp_path / "out").quantization
    assert told is not None
    assert (told.scheme, told.worst_weights[0].weight) == ("w8a8", worst)
    stored = blocks_of(tmp_path / "out")
    kept = restored(stored[worst], stored[f"{worst}_scale"])
    exact = tensors[worst].float()
    error = float((kept - exact).norm() / exact.norm())
    assert told.worst_weights[0].relative_error == pytest.approx(error, rel=1e-4)
    assert 0 < told.mean_relative_error < error


def test_a_damaged_weight_is_named(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    tensors["model.layers.2.mlp.down_proj.weight"][3, 5] = float("nan")
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(CheckFailedError, match=r"layers\.2\.mlp\.down_proj\.weight holds NaN"):
        run_conversion(source, tmp_path / "out", OPTIONS)


def test_quantising_holds_chunks_and_never_a_tensor(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    config = CONFIG | {"vocab_size": 1000, "intermediate_size": 100_000, "num_hidden_layers": 1}
    tensors = {name: torch.ones(shape) for name, shape in expected_tensors(config).items()}
    save_file(tensors, source / "model.safetensors")
    (source / "config.json").write_text(json.dumps(config))
    (source / "tokenizer.json").write_text("{}")
    idle = peak_while([IDLE])
    largest_tensor_in_float32 = 100_000 * 512 * 4
    peak = peak_while([CONVERT, str(source), str(tmp_path / "out")]) - idle
    assert peak < largest_tensor_in_float32
