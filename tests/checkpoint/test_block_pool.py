"""Several blocks at a time."""

import threading
from pathlib import Path

import pytest
import torch

from tests.checkpoint.sources import MemorySource
from tunan.checkpoint.block_pool import write_blocks
from tunan.checkpoint.blocks import Written
from tunan.checkpoint.chunks import ChunkReader
from tunan.checkpoint.parallel import Part
from tunan.checkpoint.plan import Entry, PlannedBlock
from tunan.errors import CheckFailedError

COUNT = 12


@pytest.fixture
def source(tmp_path: Path) -> MemorySource:
    tensors = {f"t{at}": torch.full((10, 10), float(at)) for at in range(COUNT)}
    return MemorySource(tmp_path / "source", tensors)


def blocks() -> list[PlannedBlock]:
    return [
        PlannedBlock(
            f"{at}.safetensors", (Entry(f"t{at}", "F32", (10, 10), (Part(f"t{at}", 0, 10),)),)
        )
        for at in reversed(range(COUNT))
    ]


def test_every_block_is_written_and_told(source: MemorySource, tmp_path: Path) -> None:
    told: list[Written] = []
    sizes: list[int] = []
    write_blocks(ChunkReader(source), blocks(), tmp_path, 3, sizes.append, told.append)
    assert {written.block.file for written in told} == {block.file for block in blocks()}
    assert sum(sizes) == COUNT * 400


def test_blocks_are_written_in_the_order_of_the_source(
    source: MemorySource, tmp_path: Path
) -> None:
    told: list[Written] = []
    write_blocks(ChunkReader(source), blocks(), tmp_path, 1, lambda size: None, told.append)
    assert [written.block.file for written in told] == [f"{at}.safetensors" for at in range(COUNT)]


def test_the_first_failure_stops_the_rest_and_is_raised(tmp_path: Path) -> None:
    tensors = {f"t{at}": torch.zeros(10, 10) for at in range(COUNT)}
    tensors["t1"][3, 3] = float("nan")
    source = MemorySource(tmp_path / "source", tensors)
    told: list[Written] = []
    with pytest.raises(CheckFailedError, match="t1 holds NaN"):
        write_blocks(ChunkReader(source), blocks(), tmp_path, 1, lambda size: None, told.append)
    assert [written.block.file for written in told] == ["0.safetensors"]
    assert not list(tmp_path.glob("*.tmp"))


def test_no_thread_is_left_and_torch_has_its_own_back(source: MemorySource, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    write_blocks(ChunkReader(source), blocks(), tmp_path, 2, lambda size: None, lambda b: None)
    assert torch.get_num_threads() == before
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("block")]
