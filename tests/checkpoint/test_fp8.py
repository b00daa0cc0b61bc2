import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models import quantise_to_fp8_blocks, write_deepseek_v3, write_llama
from tunan.checkpoint.fp8 import BlockFP8Source, dequantised
from tunan.checkpoint.safetensors_source import open_safetensors
from tunan.errors import CheckFailedError, UsageError

WEIGHT = "w.weight"
SCALE = "w.weight_scale_inv"


def reference(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The definition, element by element, in float64."""
    row = torch.arange(weight.shape[0])[:, None] // 128
    column = torch.arange(weight.shape[1])[None, :] // 128
    return weight.double() * scale.double()[row, column]


def write(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    write_deepseek_v3(path, fp8=True)
    save_file(tensors, path / "model.safetensors")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(CheckFailedError) as caught:
        dequantised(open_safetensors(path))
    return str(caught.value)


@pytest.mark.parametrize("shape", [(128, 128), (576, 256), (130, 300), (1, 1), (128, 129)])
def test_blocks_are_scaled_with_partial_ones_at_the_edges(
    tmp_path: Path, shape: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    weight, scale = quantise_to_fp8_blocks(torch.randn(shape))
    source = dequantised(open_safetensors(write(tmp_path, {WEIGHT: weight, SCALE: scale})))
    rows = source.rows(WEIGHT, 0, shape[0])
    assert source.tensors[WEIGHT].dtype == "F32"
    assert source.tensors[WEIGHT].row_multiple == 128
    torch.testing.assert_close(rows.double(), reference(weight, scale), rtol=1e-6, atol=0)


def test_some_rows_use_their_own_scales(tmp_path: Path) -> None:
    weight, scale = quantise_to_fp8_blocks(torch.randn(576, 200))
    source = dequantised(open_safetensors(write(tmp_path, {WEIGHT: weight, SCALE: scale})))
    expected = reference(weight, scale).float()
    torch.testing.assert_close(source.rows(WEIGHT, 128, 384), expected[128:384])
    torch.testing.assert_close(source.rows(WEIGHT, 512, 576), expected[512:])
    with pytest.raises(ValueError, match="start of a block"):
        source.rows(WEIGHT, 100, 128)


def test_a_model_loses_its_scales_and_its_quantization_config(tmp_path: Path) -> None:
    path = write_deepseek_v3(tmp_path, fp8=True, mtp=True)
    stored = load_file(path / "model.safetensors")
    source = dequantised(open_safetensors(path))
    assert "quantization_config" not in source.config
    assert set(source.tensors) == {name for name in stored if not name.endswith("_scale_inv")}
    assert any(name.startswith("model.layers.3.") for name in source.tensors)
    name = "model.layers.0.self_attn.kv_a_proj_with_mqa.weight"
    assert source.tensors[name].shape == (576, 256)
    assert stored[f"{name}_scale_inv"].shape == (5, 2)
    source.release(name)
    torch.testing.assert_close(
        source.rows(name, 0, 576).double(), reference(stored[name], stored[f"{name}_scale_inv"])
    )


def test_a_nan_byte_stays_a_nan(tmp_path: Path) -> None:
    weight, scale = quantise_to_fp8_blocks(torch.randn(128, 128))
    weight.view(torch.uint8)[3, 5] = 0x7F
    source = dequantised(open_safetensors(write(tmp_path, {WEIGHT: weight, SCALE: scale})))
    assert source.rows(WEIGHT, 0, 128).isnan().nonzero().tolist() == [[3, 5]]


def test_the_mapped_weights_are_not_written_to(tmp_path: Path) -> None:
    weight, scale = quantise_to_fp8_blocks(torch.randn(128, 128))
    source = dequantised(open_safetensors(write(tmp_path, {WEIGHT: weight, SCALE: scale})))
    assert torch.equal(source.rows(WEIGHT, 0, 128), source.rows(WEIGHT, 0, 128))


def test_a_missing_scale_is_named(tmp_path: Path) -> None:
    weight, _ = quantise_to_fp8_blocks(torch.randn(128, 128))
    assert f"its scale '{SCALE}' is missing" in refusal(write(tmp_path, {WEIGHT: weight}))


def test_a_scale_of_the_wrong_shape_is_named(tmp_path: Path) -> None:
    weight, _ = quantise_to_fp8_blocks(torch.randn(576, 256))
    message = refusal(write(tmp_path, {WEIGHT: weight, SCALE: torch.ones(4, 2)}))
    assert f"tensor '{SCALE}': F32 [4, 2]" in message
    assert "[5, 2]" in message


def test_a_scale_without_a_weight_is_named(tmp_path: Path) -> None:
    assert "has no FP8 weight" in refusal(write(tmp_path, {SCALE: torch.ones(1, 1)}))


def test_fp8_without_a_quantization_config_is_refused(tmp_path: Path) -> None:
    path = write_llama(tmp_path)
    weight, scale = quantise_to_fp8_blocks(torch.randn(128, 128))
    save_file({WEIGHT: weight, SCALE: scale}, path / "model.safetensors")
    assert "no quantization_config" in refusal(path)


def test_another_quantisation_is_refused_by_name(tmp_path: Path) -> None:
    path = write_llama(tmp_path, quantization_config={"quant_method": "awq"})
    # The writer quantises when there is such a section, so the tensors are written anew.
    save_file({name: torch.ones(2) for name in ("a", "b")}, path / "model.safetensors")
    with pytest.raises(UsageError, match=r"already quantised \('awq'\)"):
        dequantised(open_safetensors(path))


def test_an_unquantised_source_is_passed_through(tmp_path: Path) -> None:
    source = open_safetensors(write_llama(tmp_path))
    assert dequantised(source) is source
    assert not isinstance(dequantised(source), BlockFP8Source)


def test_a_damaged_block_size_is_refused(tmp_path: Path) -> None:
    path = write_deepseek_v3(tmp_path, fp8=True)
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"]["weight_block_size"] = [128, 0]
    (path / "config.json").write_text(json.dumps(config))
    assert "weight_block_size is [128, 0]" in refusal(path)
