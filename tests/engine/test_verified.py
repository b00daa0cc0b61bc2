import os
from pathlib import Path

import pytest

from tunan.engine.layout import PlannedBlock
from tunan.engine.verified import VerifiedBlocks


@pytest.fixture
def block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlannedBlock:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "block"
    path.write_bytes(b"weights")
    return PlannedBlock(path, "ab" * 32, 7, (), whole=True)


def record(block: PlannedBlock, degree: int = 1) -> VerifiedBlocks:
    return VerifiedBlocks.of(block.path.parent, degree, 0)


def remember(block: PlannedBlock) -> None:
    first = record(block)
    assert not first.holds(block)
    first.add(block)
    first.save()


def test_a_block_is_remembered_by_later_processes(block: PlannedBlock) -> None:
    remember(block)
    assert record(block).holds(block)
    assert not record(block, degree=2).holds(block)


def test_a_write_is_noticed_even_if_size_and_modification_time_stay(block: PlannedBlock) -> None:
    remember(block)
    times = block.path.stat()
    block.path.write_bytes(b"WEIGHTS")
    os.utime(block.path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert block.path.stat().st_mtime_ns == times.st_mtime_ns
    assert not record(block).holds(block)


def test_a_write_while_it_is_hashed_is_noticed(block: PlannedBlock) -> None:
    first = record(block)
    assert not first.holds(block)
    block.path.write_bytes(b"WEIGHTS")
    first.add(block)
    first.save()
    assert not record(block).holds(block)


def test_another_manifest_counts_as_another_block(block: PlannedBlock) -> None:
    remember(block)
    other = PlannedBlock(block.path, "cd" * 32, 7, (), whole=True)
    assert not record(block).holds(other)


def test_a_damaged_record_is_an_empty_one(block: PlannedBlock) -> None:
    remember(block)
    record(block).path.write_text("{")
    assert not record(block).holds(block)


def test_a_record_that_cannot_be_written_is_no_error(block: PlannedBlock) -> None:
    first = record(block)
    first.path.parent.parent.mkdir(parents=True)
    first.path.parent.write_text("in the way")
    assert not first.holds(block)
    first.add(block)
    first.save()
