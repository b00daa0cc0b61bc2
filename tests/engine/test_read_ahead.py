import threading
from pathlib import Path

import pytest

from tests.engine.converted import convert
from tunan.checkpoint.manifest import Manifest
from tunan.engine.layout import PlannedBlock, plain_blocks
from tunan.engine.ranges import Range, ranges_of
from tunan.engine.read_ahead import read_ahead
from tunan.errors import CheckFailedError

whole_tensors = ranges_of({})


def yes(_: PlannedBlock) -> bool:
    return True


def no(_: PlannedBlock) -> bool:
    return False


def ignore(_: PlannedBlock) -> None:
    pass


@pytest.fixture
def blocks(tmp_path: Path) -> list[PlannedBlock]:
    directory = convert("llama", tmp_path)
    planned = plain_blocks(directory, Manifest.read(directory), lambda _: True)
    assert len(planned) >= 3
    return planned


def flip_last_byte(block: PlannedBlock) -> None:
    with block.path.open("r+b") as file:
        file.seek(block.bytes - 1)
        last = file.read(1)[0]
        file.seek(block.bytes - 1)
        file.write(bytes([last ^ 1]))


def test_sound_blocks_come_in_order(blocks: list[PlannedBlock]) -> None:
    assert list(read_ahead(blocks, yes, ignore, whole_tensors)) == blocks
    assert list(read_ahead([], yes, ignore, whole_tensors)) == []


def test_a_corrupt_block_is_named_before_it_is_used(blocks: list[PlannedBlock]) -> None:
    flip_last_byte(blocks[1])
    stream = read_ahead(blocks, yes, ignore, whole_tensors)
    assert next(stream) == blocks[0]
    with pytest.raises(CheckFailedError, match=f"{blocks[1].path.name}: its content is not"):
        next(stream)


def test_only_the_blocks_asked_for_are_hashed(blocks: list[PlannedBlock]) -> None:
    flip_last_byte(blocks[0])
    passed: list[PlannedBlock] = []
    hashed = blocks[1:].__contains__
    assert list(read_ahead(blocks, hashed, passed.append, whole_tensors)) == blocks
    assert passed == blocks[1:]


def test_never_more_than_one_block_is_read_ahead(blocks: list[PlannedBlock]) -> None:
    asked: list[PlannedBlock] = []
    second = threading.Event()

    def ranges(block: PlannedBlock) -> list[Range]:
        asked.append(block)
        if len(asked) == 2:
            second.set()
        return whole_tensors(block)

    stream = read_ahead(blocks, no, ignore, ranges)
    next(stream)
    assert second.wait(timeout=60)
    assert asked == blocks[:2]
    next(stream)
    list(stream)
    assert asked == blocks


def test_a_block_that_disappears_is_named(blocks: list[PlannedBlock]) -> None:
    blocks[0].path.unlink()
    with pytest.raises(CheckFailedError, match=f"{blocks[0].path.name}: cannot be read"):
        next(read_ahead(blocks, yes, ignore, whole_tensors))


def test_leaving_early_stops_the_reader(blocks: list[PlannedBlock]) -> None:
    stream = read_ahead(blocks, yes, ignore, whole_tensors)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert not any(t.name.startswith("tunan-read-ahead") for t in threading.enumerate())
