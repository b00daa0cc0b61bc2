import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tests.memory import resident
from tests.models import write_llama
from tunan.checkpoint.safetensors_source import SafetensorsSource, open_safetensors
from tunan.errors import CheckFailedError

INDEX = "model.safetensors.index.json"
NORM = "model.norm.weight"


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "whole")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "sharded", shards=3)


def refusal(path: Path) -> str:
    with pytest.raises(CheckFailedError) as caught:
        open_safetensors(path)
    return str(caught.value)


def stored(path: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for file in path.glob("*.safetensors"):
        with safe_open(file, framework="pt") as opened:
            tensors.update({name: opened.get_tensor(name) for name in opened.keys()})  # noqa: SIM118
    return tensors


def all_rows(source: SafetensorsSource, name: str) -> torch.Tensor:
    info = source.tensors[name]
    return source.rows(name, 0, info.shape[0] if info.shape else 1)


@pytest.mark.parametrize("kind", ["whole", "sharded"])
def test_every_tensor_reads_as_safetensors_reads_it(
    kind: str, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(kind)
    source = open_safetensors(path)
    expected = stored(path)
    assert source.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert source.tensors[name].shape == tuple(tensor.shape)
        assert source.tensors[name].dtype == "BF16"
        assert torch.equal(all_rows(source, name), tensor)


def test_some_rows_are_a_slice_along_the_first_dimension(whole: Path) -> None:
    source = open_safetensors(whole)
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(source.rows(name, 5, 9), stored(whole)[name][5:9])
    assert source.rows(name, 5, 5).shape == (0, source.tensors[name].shape[1])


def test_rows_share_the_mapped_memory(whole: Path) -> None:
    source = open_safetensors(whole)
    first, again = all_rows(source, NORM), all_rows(source, NORM)
    assert first.data_ptr() == again.data_ptr()


def test_rows_are_the_same_after_a_release(whole: Path) -> None:
    source = open_safetensors(whole)
    before = all_rows(source, "lm_head.weight").clone()
    source.release("lm_head.weight")
    assert torch.equal(all_rows(source, "lm_head.weight"), before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64, torch.bool, torch.float8_e4m3fn])
def test_scalars_empty_tensors_and_other_dtypes_are_read(whole: Path, dtype: torch.dtype) -> None:
    tensors = {"scalar": torch.tensor(1).to(dtype), "none": torch.empty(0, 3).to(dtype)}
    save_file(tensors, whole / "model.safetensors")
    source = open_safetensors(whole)
    assert source.rows("scalar", 0, 1).item() == 1
    assert source.rows("none", 0, 0).shape == (0, 3)
    assert source.rows("none", 0, 0).dtype == dtype


def test_six_digits_after_of_are_a_shard_name_too(whole: Path) -> None:
    name = "model-00001-of-000002.safetensors"
    (whole / "model.safetensors").rename(whole / name)
    assert "model-00002-of-000002.safetensors: this shard is missing" in refusal(whole)
    save_file({"extra": torch.ones(1)}, whole / "model-00002-of-000002.safetensors")
    assert "extra" in open_safetensors(whole).tensors


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors: this shard is missing" in refusal(sharded)


def test_a_truncated_shard_is_named_with_the_tensor_it_cuts(sharded: Path) -> None:
    shard = sharded / "model-00003-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    message = refusal(sharded)
    assert f"{shard}: tensor '{NORM}': truncated" in message  # the last one in that file


def test_a_tensor_the_index_puts_into_another_file_is_named(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"][NORM] = "model-00001-of-00003.safetensors"
    (sharded / INDEX).write_text(json.dumps(index))
    message = refusal(sharded)
    assert f"model-00001-of-00003.safetensors: tensor '{NORM}' is not in it" in message
    assert "it is in model-00003-of-00003.safetensors" in message


def test_a_tensor_the_index_does_not_know_is_named(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    del index["weight_map"][NORM]
    (sharded / INDEX).write_text(json.dumps(index))
    assert f"tensor '{NORM}' is in it but not in {INDEX}" in refusal(sharded)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": {"a": "../secret"}}'])
def test_a_malformed_index_is_named(sharded: Path, text: str) -> None:
    (sharded / INDEX).write_text(text)
    assert f"{sharded / INDEX}: " in refusal(sharded)


def test_a_tensor_in_two_shards_is_named(whole: Path) -> None:
    (whole / "model.safetensors").rename(whole / "one.safetensors")
    save_file({NORM: torch.ones(2)}, whole / "two.safetensors")
    assert f"two.safetensors: tensor '{NORM}' is in one.safetensors as well" in refusal(whole)


def test_the_fingerprint_tells_fine_tunes_of_one_shape_apart(tmp_path: Path) -> None:
    prints = [
        open_safetensors(write_llama(tmp_path / str(number), seed=seed)).fingerprint()
        for number, seed in enumerate((1, 1, 2))
    ]
    assert prints[0] == prints[1] != prints[2]


def test_reading_costs_no_anonymous_memory(whole: Path) -> None:
    size = 64 << 20
    save_file({"big": torch.ones(size // 4)}, whole / "model.safetensors")
    source = open_safetensors(whole)
    before = resident("RssAnon"), resident("RssFile")
    assert all_rows(source, "big").sum() == size // 4
    assert resident("RssFile") - before[1] > size * 0.9
    source.release("big")
    assert resident("RssFile") - before[1] < size * 0.1
    assert resident("RssAnon") - before[0] < size * 0.25
