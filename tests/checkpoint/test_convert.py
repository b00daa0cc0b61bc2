"""Whole conversions of real files."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from tests.checkpoint.sources import MemorySource, Recorder, run_conversion
from tests.models import write_deepseek_v3, write_llama, write_qwen2
from tunan.checkpoint.architectures import expected_tensors
from tunan.checkpoint.convert import ConvertOptions, plan_conversion
from tunan.checkpoint.manifest import Manifest
from tunan.checkpoint.parallel import fused_parameters
from tunan.checkpoint.precision import PRECISIONS
from tunan.checkpoint.source import open_source
from tunan.errors import CheckFailedError, UsageError

SMALL_BLOCKS = ConvertOptions(block_bytes=300_000)


def load_blocks(directory: Path) -> dict[str, Tensor]:
    """Every tensor of a directory of blocks, found through its index."""
    index = json.loads((directory / "model.safetensors.index.json").read_bytes())
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(index["weight_map"].values())):
        held = load_file(directory / file)
        assert {name for name, where in index["weight_map"].items() if where == file} == set(held)
        tensors |= held
    return tensors


def fused(config: Mapping[str, Any], full: Mapping[str, Tensor], degree: int, rank: int) -> Any:
    """A rank's tensors, put together in memory."""
    tensors = {}
    for parameter in fused_parameters(config, degree, rank):
        pieces = []
        for part in parameter.parts:
            if part.tensor is None:
                pieces.append(torch.zeros(part.rows, *parameter.shape[1:]).bfloat16())
                continue
            rows = full[part.tensor][part.start : part.stop]
            pieces.append(rows if part.columns is None else rows[:, slice(*part.columns)])
        tensors[parameter.name] = torch.cat(pieces).reshape(parameter.shape)
    return tensors


@pytest.fixture(scope="module")
def llama_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama") / "source", shards=2)


@pytest.fixture(scope="module")
def v3_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_deepseek_v3(tmp_path_factory.mktemp("v3") / "source", mtp=True)


def test_every_tensor_arrives_bit_for_bit(llama_directory: Path, tmp_path: Path) -> None:
    run_conversion(llama_directory, tmp_path / "out", SMALL_BLOCKS)
    source, result = load_blocks(llama_directory), load_blocks(tmp_path / "out")
    assert set(source) == set(result)
    assert all(torch.equal(source[name], result[name]) for name in source)
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 4


def test_prediction_layers_and_the_routers_float32_bias_arrive_intact(
    v3_directory: Path, tmp_path: Path
) -> None:
    outcome = run_conversion(v3_directory, tmp_path / "out", SMALL_BLOCKS)
    source, result = (
        {
            name: tensor
            for file in directory.glob("*.safetensors")
            for name, tensor in load_file(file).items()
        }
        for directory in (v3_directory, tmp_path / "out")
    )
    assert any(name.endswith("eh_proj.weight") for name in result)
    assert set(source) == set(result)
    assert all(torch.equal(source[name], result[name]) for name in source)
    (kept,) = outcome.manifest.kept_precision
    assert (kept.suffix, kept.dtype) == ("e_score_correction_bias", "F32")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_number_format_is_written_and_declared(
    llama_directory: Path, tmp_path: Path, dtype: str
) -> None:
    run_conversion(llama_directory, tmp_path / "out", ConvertOptions(precision=PRECISIONS[dtype]))
    assert json.loads((tmp_path / "out/config.json").read_bytes())["torch_dtype"] == dtype
    source, result = load_blocks(llama_directory), load_blocks(tmp_path / "out")
    wanted = getattr(torch, dtype)
    assert all(torch.equal(source[name].to(wanted), result[name]) for name in source)


@pytest.mark.parametrize("degree", [1, 2])
def test_rank_blocks_hold_what_slicing_at_load_gives(
    v3_directory: Path, tmp_path: Path, degree: int
) -> None:
    options = ConvertOptions(tensor_parallel=degree, block_bytes=300_000)
    outcome = run_conversion(v3_directory, tmp_path / "out", options)
    full = load_blocks(tmp_path / "out")
    config = json.loads((v3_directory / "config.json").read_bytes())
    for rank in range(degree):
        ours = load_blocks(tmp_path / f"out/tensor-parallel-{degree}/rank-{rank}")
        expected = fused(config, full, degree, rank)
        assert set(ours) == set(expected)
        assert all(torch.equal(ours[name], expected[name]) for name in expected)
        assert outcome.manifest.blocks_of(rank)
    assert outcome.manifest.tensor_parallel_degree == degree


def test_fp8_blocks_are_dequantised_also_where_ranks_cut_through_them(tmp_path: Path) -> None:
    source = write_deepseek_v3(tmp_path / "source", fp8=True)
    run_conversion(source, tmp_path / "out", ConvertOptions(tensor_parallel=4))
    config = json.loads((tmp_path / "out/config.json").read_bytes())
    assert "quantization_config" not in config
    full = load_blocks(tmp_path / "out")
    ours = load_blocks(tmp_path / "out/tensor-parallel-4/rank-3")
    expected = fused(config, full, 4, 3)
    assert all(torch.equal(ours[name], expected[name]) for name in expected)


def test_the_manifest_says_what_was_made(llama_directory: Path, tmp_path: Path) -> None:
    options = ConvertOptions(target="ascend910b", max_batch_size=7, tensor_parallel=2)
    outcome = run_conversion(llama_directory, tmp_path / "out", options)
    manifest = Manifest.read(tmp_path / "out")
    assert manifest == outcome.manifest
    assert (manifest.model_name, manifest.architecture) == ("out", "LlamaForCausalLM")
    assert (manifest.precision, manifest.max_batch_size, manifest.target) == (
        "bf16",
        7,
        "ascend910b",
    )
    assert manifest.operators["SiluAndMul"] == "npu_swiglu"
    assert {file.file for file in manifest.files} >= {"config.json", "tokenizer.json"}
    assert manifest.source.sha256 == open_source(llama_directory).fingerprint()


def test_transformers_loads_the_result_with_the_same_logits(
    llama_directory: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    run_conversion(llama_directory, tmp_path / "out", SMALL_BLOCKS)
    tokens = torch.arange(1, 20).unsqueeze(0)
    logits = []
    for directory in (llama_directory, tmp_path / "out"):
        model = AutoModelForCausalLM.from_pretrained(directory)
        assert model.dtype == torch.bfloat16
        with torch.inference_mode():
            logits.append(model(tokens).logits)
    assert torch.equal(*logits)


def test_a_second_conversion_gives_the_same_bytes(llama_directory: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        run_conversion(llama_directory, tmp_path / name, ConvertOptions(name="same"))
    first, second = (Manifest.read(tmp_path / name) for name in ("a", "b"))
    assert first == second


def test_rotary_frequencies_are_dropped_and_the_unexpected_is_carried(
    llama: dict[str, Any], tmp_path: Path
) -> None:
    tensors = {name: torch.randn(shape) for name, shape in expected_tensors(llama).items()}
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.randn(4)
    tensors["model.extra"] = torch.randn(4)
    outcome = run_conversion(MemorySource(tmp_path / "source", tensors, llama), tmp_path / "out")
    assert outcome.manifest.unexpected_tensors == ("model.extra",)
    names = load_blocks(tmp_path / "out")
    assert "model.extra" in names
    assert not any(name.endswith("inv_freq") for name in names)


def test_a_missing_shard_leaves_nothing(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "source", shards=3)
    gone = sorted(source.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(CheckFailedError, match=gone.name):
        run_conversion(source, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_degree_that_does_not_fit_leaves_nothing(llama_directory: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="tensor-parallel size 3"):
        run_conversion(llama_directory, tmp_path / "out", ConvertOptions(tensor_parallel=3))
    assert not list(tmp_path.iterdir())


def test_an_unknown_target_is_refused(llama_directory: Path) -> None:
    with pytest.raises(UsageError, match=r"'tpu'; known are cpu, ascend910b"):
        plan_conversion(open_source(llama_directory), ConvertOptions(target="tpu"))


def test_a_nan_in_a_file_is_named_and_nothing_looks_complete(tmp_path: Path) -> None:
    source = write_qwen2(tmp_path / "source")
    file = next(iter(source.glob("*.safetensors")))
    name = "model.layers.1.mlp.up_proj.weight"
    with safe_open(file, "pt") as opened:
        size = opened.get_tensor(name).numel()
    content = bytearray(file.read_bytes())
    header = int.from_bytes(content[:8], "little")
    start, _ = json.loads(content[8 : 8 + header])[name]["data_offsets"]
    at = 8 + header + start + size  # a bf16 element in the middle
    content[at : at + 2] = b"\xc0\x7f"
    file.write_bytes(content)
    with pytest.raises(CheckFailedError, match=rf"{file.name}: {name} holds NaN"):
        run_conversion(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.partial/tunan.json").exists()


def test_a_number_format_without_a_conversion_is_named(
    llama: dict[str, Any], tmp_path: Path
) -> None:
    tensors = {name: torch.zeros(shape) for name, shape in expected_tensors(llama).items()}
    source = MemorySource(tmp_path / "source", tensors, llama)
    odd = replace(source.tensors["model.norm.weight"], dtype="F8_E8M0")
    source.tensors["model.norm.weight"] = odd
    with pytest.raises(CheckFailedError, match=r"model\.norm\.weight is stored as F8_E8M0"):
        run_conversion(source, tmp_path / "out")


def test_progress_is_told_every_byte(llama_directory: Path, tmp_path: Path) -> None:
    progress = Recorder()
    outcome = run_conversion(llama_directory, tmp_path / "out", SMALL_BLOCKS, progress)
    assert progress.done == progress.total == outcome.written_bytes > 0


def test_a_weight_of_whole_numbers_is_refused_as_no_engine_could_scale_it(
    tmp_path: Path, llama: dict[str, Any]
) -> None:
    tensors = {name: torch.zeros(shape) for name, shape in expected_tensors(llama).items()}
    tensors["model.norm.weight"] = tensors["model.norm.weight"].long()
    with pytest.raises(CheckFailedError, match=r"model\.norm\.weight is stored as I64"):
        plan_conversion(MemorySource(tmp_path / "m", tensors, llama), ConvertOptions())


def test_a_tensor_called_like_the_files_own_metadata_is_refused(
    tmp_path: Path, llama: dict[str, Any]
) -> None:
    tensors = {name: torch.zeros(shape) for name, shape in expected_tensors(llama).items()}
    tensors["__metadata__"] = torch.zeros(1)
    with pytest.raises(CheckFailedError, match="safetensors keeps this name for itself"):
        plan_conversion(MemorySource(tmp_path / "m", tensors, llama), ConvertOptions())


def test_scalars_empty_tensors_and_odd_names_arrive(tmp_path: Path, llama: dict[str, Any]) -> None:
    tensors = {name: torch.zeros(shape) for name, shape in expected_tensors(llama).items()}
    odd = {
        "scalar": torch.tensor(3, dtype=torch.int64),
        "no rows": torch.empty(0, 5, dtype=torch.bfloat16),
        "no columns": torch.empty(5, 0, dtype=torch.bfloat16),
        '模😀"\\': torch.ones(3, dtype=torch.bfloat16),
    }
    run_conversion(MemorySource(tmp_path / "m", tensors | odd, llama), tmp_path / "out")
    held = load_blocks(tmp_path / "out")
    for name, tensor in odd.items():
        assert torch.equal(held[name], tensor)


def test_names_and_settings_that_utf8_cannot_hold_are_converted(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "source", note="\ud800")
    source = source.rename(tmp_path / os.fsdecode(b"\xb8\xf6"))
    run_conversion(source, tmp_path / os.fsdecode(b"\xc4\xfe"))
    manifest = Manifest.read(tmp_path / os.fsdecode(b"\xc4\xfe"))
    assert manifest.model_name == "\\xc4\\xfe"
    assert manifest.source.path.endswith("/\\xb8\\xf6")
