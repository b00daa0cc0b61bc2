"""Writing a block: the bytes, the checks, and what is left when it fails."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.checkpoint.sources import MemorySource
from tunan.checkpoint import chunks
from tunan.checkpoint.blocks import header_of, write_block
from tunan.checkpoint.chunks import ChunkReader
from tunan.checkpoint.parallel import Part
from tunan.checkpoint.plan import Entry, PlannedBlock
from tunan.checkpoint.precision import PRECISIONS, written_dtype
from tunan.errors import CheckFailedError

FILE = "model-00001-of-00001.safetensors"


def write(
    tmp_path: Path, tensors: Mapping[str, Tensor], dtype: str = "bfloat16", row_multiple: int = 1
) -> dict[str, Tensor]:
    """Writes every tensor whole into one block and reads it back with safetensors."""
    source = MemorySource(tmp_path / "source", tensors, row_multiple=row_multiple)
    entries = tuple(
        Entry(
            name,
            written_dtype(name, info.dtype, PRECISIONS[dtype]),
            info.shape,
            (Part(name, 0, info.shape[0] if info.shape else 1),),
        )
        for name, info in source.tensors.items()
    )
    block = PlannedBlock(FILE, entries)
    line = write_block(ChunkReader(source), block, tmp_path, lambda size: None).block
    content = (tmp_path / FILE).read_bytes()
    assert (line.bytes, line.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert source.released == set(tensors)
    return load_file(tmp_path / FILE)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small tensors take many chunks."""
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 100)


def test_floats_are_converted_and_everything_else_is_not(tmp_path: Path) -> None:
    tensors = {
        "a": torch.randn(33, 7),
        "b": torch.randn(50).to(torch.float64),
        "c": torch.arange(300).reshape(3, 100),
        "d": torch.tensor(2.5),
        "e": torch.empty(0, 4),
    }
    read = write(tmp_path, tensors)
    assert torch.equal(read["a"], tensors["a"].bfloat16())
    assert torch.equal(read["b"], tensors["b"].bfloat16())
    assert torch.equal(read["c"], tensors["c"])
    assert torch.equal(read["d"], torch.tensor(2.5).bfloat16())
    assert read["e"].shape == (0, 4)


def test_the_router_correction_bias_stays_float32(tmp_path: Path) -> None:
    bias = torch.randn(8)
    name = "model.layers.3.mlp.gate.e_score_correction_bias"
    assert torch.equal(write(tmp_path, {name: bias})[name], bias)


def test_a_source_is_asked_for_whole_multiples_of_its_rows(tmp_path: Path) -> None:
    tensor = torch.randn(300, 3)
    assert torch.equal(write(tmp_path, {"a": tensor}, row_multiple=128)["a"], tensor.bfloat16())


def test_parts_are_cut_out_of_a_source_with_granularity(tmp_path: Path) -> None:
    tensor = torch.randn(300, 8).bfloat16()
    source = MemorySource(tmp_path / "source", {"a": tensor}, row_multiple=128)
    parts = (Part("a", 60, 140), Part(None, 0, 30), Part("a", 0, 5))
    block = PlannedBlock(FILE, (Entry("x", "BF16", (115, 8), parts),))
    write_block(ChunkReader(source), block, tmp_path, lambda size: None)
    expected = torch.cat([tensor[60:140], torch.zeros(30, 8).bfloat16(), tensor[:5]])
    assert torch.equal(load_file(tmp_path / FILE)["x"], expected)


def test_columns_are_cut_out(tmp_path: Path) -> None:
    tensor = torch.randn(40, 8)
    source = MemorySource(tmp_path / "source", {"a": tensor})
    block = PlannedBlock(FILE, (Entry("x", "F32", (40, 3), (Part("a", 0, 40, (2, 5)),)),))
    write_block(ChunkReader(source), block, tmp_path, lambda size: None)
    assert torch.equal(load_file(tmp_path / FILE)["x"], tensor[:, 2:5])


@pytest.mark.parametrize(("value", "word"), [(float("nan"), "NaN"), (float("-inf"), "infinity")])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_value_that_is_no_number_is_named_and_nothing_is_left(
    tmp_path: Path, value: float, word: str, dtype: torch.dtype
) -> None:
    tensor = torch.zeros(500, 3, dtype=dtype)
    tensor[444, 1] = value
    with pytest.raises(CheckFailedError, match=rf"source: model\.norm\.weight holds {word}"):
        write(tmp_path, {"model.norm.weight": tensor})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_a_value_too_large_for_float16_is_told_apart_from_damage(tmp_path: Path) -> None:
    with pytest.raises(
        CheckFailedError, match=r"70000, too large for float16; use --dtype bfloat16"
    ):
        write(tmp_path, {"a": torch.tensor([1.0, -70000.0])}, dtype="float16")


def test_integers_are_not_searched_for_nan(tmp_path: Path) -> None:
    tensor = torch.full((4,), 255, dtype=torch.uint8)
    assert torch.equal(write(tmp_path, {"a": tensor})["a"], tensor)


def test_a_source_that_shrinks_is_named(tmp_path: Path) -> None:
    source = MemorySource(tmp_path / "source", {"a": torch.zeros(4)})
    source.path.write_bytes(b"x" * 100)
    reader = ChunkReader(source)
    os.truncate(source.path, 50)
    entry = Entry("a", "F32", (4,), (Part("a", 0, 4),))
    with pytest.raises(CheckFailedError, match="source: was truncated while it was read"):
        list(reader.chunks(entry))


def test_data_begins_at_a_multiple_of_64(tmp_path: Path) -> None:
    for length in range(1, 70):
        entry = Entry("x" * length, "U8", (1,), (Part("a", 0, 1),))
        assert len(header_of(PlannedBlock(FILE, (entry,)))) % 64 == 0


def test_a_stopped_block_leaves_nothing(tmp_path: Path) -> None:
    def stop(size: int) -> None:
        raise KeyboardInterrupt

    source = MemorySource(tmp_path / "source", {"a": torch.zeros(4)})
    block = PlannedBlock(FILE, (Entry("a", "F32", (4,), (Part("a", 0, 4),)),))
    with pytest.raises(KeyboardInterrupt):
        write_block(ChunkReader(source), block, tmp_path, stop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]
