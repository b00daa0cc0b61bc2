"""Packed weights on disk: kept, found again, and refused when they are not what they claim."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models import write_llama
from tunan.engine.cpu import packed_file
from tunan.engine.cpu.packed_file import HEADER_BYTES, MAGIC, PackedWeights
from tunan.engine.cpu.sidecar import FOLDER, Packing, Sidecar

SIZE = 100_000
PACKING = Packing("linear2v1", 1, 0, "vllm 1")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "model", num_hidden_layers=1)


def fill(out: torch.Tensor) -> None:
    out.copy_(torch.arange(out.numel()) % 251)


def anything(packed: torch.Tensor) -> bool:
    return True


def never(out: torch.Tensor) -> None:
    raise AssertionError("packed again")


def make(checkpoint: Path, packing: Packing = PACKING) -> PackedWeights:
    return Sidecar.of(checkpoint, packing).make("layers.0.qkv", "w8", SIZE, fill)


def find(checkpoint: Path, packing: Packing = PACKING) -> PackedWeights | None:
    return Sidecar.of(checkpoint, packing).find("layers.0.qkv", "w8", SIZE, anything)


def test_packed_weights_are_found_by_the_next_process(checkpoint: Path) -> None:
    made = make(checkpoint)
    found = find(checkpoint)
    assert found is not None
    assert found.path == made.path
    assert torch.equal(found.data, torch.arange(SIZE, dtype=torch.int64).remainder(251).byte())
    assert found.data.data_ptr() % 64 == 0


def test_they_lie_beside_the_checkpoint(checkpoint: Path) -> None:
    path = make(checkpoint).path
    assert path == checkpoint / FOLDER / "packed-linear2v1" / "tp-1-0" / "layers.0.qkv.bin"


def test_nothing_unfinished_is_left(checkpoint: Path) -> None:
    path = make(checkpoint).path
    assert path is not None
    assert list(path.parent.iterdir()) == [path]


def test_packing_that_fails_leaves_nothing(checkpoint: Path) -> None:
    with pytest.raises(AssertionError, match="packed again"):
        Sidecar.of(checkpoint, PACKING).make("layers.0.qkv", "w8", SIZE, never)
    assert not list((checkpoint / FOLDER).rglob("*.*"))
    assert find(checkpoint) is None


def test_two_that_have_the_same_process_id_do_not_disturb_each_other(checkpoint: Path) -> None:
    def fill_while_another_does(out: torch.Tensor) -> None:
        assert make(checkpoint).path is not None
        fill(out)

    sidecar = Sidecar.of(checkpoint, PACKING)
    made = sidecar.make("layers.0.qkv", "w8", SIZE, fill_while_another_does)
    assert made.path is not None
    assert made.path.parent == checkpoint / FOLDER / PACKING.folder
    assert list(made.path.parent.iterdir()) == [made.path]


@pytest.mark.parametrize(
    "change", [{"layout": "linear1v1"}, {"degree": 2}, {"degree": 2, "rank": 1}], ids=str
)
def test_another_layout_or_rank_does_not_find_them(
    checkpoint: Path, change: dict[str, Any]
) -> None:
    make(checkpoint)
    assert find(checkpoint, replace(PACKING, **change)) is None


def test_an_engine_that_reads_the_checkpoint_otherwise_does_not_find_them(checkpoint: Path) -> None:
    made = make(checkpoint)
    other = replace(PACKING, reading="vllm 2")
    assert find(checkpoint, other) is None
    assert make(checkpoint, other).path == made.path  # the stale one does not stay beside it


def test_another_form_of_the_same_layer_does_not_find_them(checkpoint: Path) -> None:
    make(checkpoint)
    sidecar = Sidecar.of(checkpoint, PACKING)
    assert sidecar.find("layers.0.qkv", "w4", SIZE, anything) is None
    assert sidecar.find("layers.0.qkv", "w8", SIZE + 1, anything) is None


def test_a_changed_checkpoint_makes_them_stale(checkpoint: Path) -> None:
    make(checkpoint)
    write_llama(checkpoint, num_hidden_layers=1, seed=1)
    assert find(checkpoint) is None
    make(checkpoint)
    assert find(checkpoint) is not None


@pytest.mark.parametrize("at", [0, 20, HEADER_BYTES + 5, HEADER_BYTES + SIZE - 1])
def test_a_flipped_byte_is_found_out(checkpoint: Path, at: int) -> None:
    path = make(checkpoint).path
    assert path is not None
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    assert find(checkpoint) is None


def test_a_truncated_file_is_found_out(checkpoint: Path) -> None:
    path = make(checkpoint).path
    assert path is not None
    path.write_bytes(path.read_bytes()[:-1])
    assert find(checkpoint) is None


def test_a_header_of_nothing_but_brackets_is_found_out(checkpoint: Path) -> None:
    path = make(checkpoint).path
    assert path is not None
    content = path.read_bytes()
    path.write_bytes(MAGIC + b"[" * (HEADER_BYTES - len(MAGIC)) + content[HEADER_BYTES:])
    assert find(checkpoint) is None


def test_what_a_killed_packing_left_is_swept_up_by_the_next(checkpoint: Path) -> None:
    path = checkpoint / FOLDER / PACKING.folder / "layers.0.qkv.bin"
    left = path.with_name("layers.7.qkv.bin.0123456789abcdef.tmp")
    path.parent.mkdir(parents=True)
    left.write_bytes(b"half of it")
    make(checkpoint)
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_is_removed_while_it_is_taken_stays_mapped(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = packed_file.read

    def read_and_lose(path: Path, key: str, size: int) -> PackedWeights | None:
        found = read(path, key, size)
        path.unlink(missing_ok=True)
        return found

    make(checkpoint)
    monkeypatch.setattr(packed_file, "read", read_and_lose)
    found = find(checkpoint)
    assert found is not None
    assert int(found.data[252]) == 1
    assert find(checkpoint) is None
    assert int(make(checkpoint).data[252]) == 1


def test_a_file_that_takes_the_place_of_the_one_just_mapped_is_not_trusted_for_it(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = packed_file.read

    def read_and_replace(path: Path, key: str, size: int) -> PackedWeights | None:
        found = read(path, key, size)
        damaged = bytearray(path.read_bytes())
        damaged[-1] ^= 1
        path.with_suffix(".new").write_bytes(damaged)
        path.with_suffix(".new").replace(path)
        return found

    made = make(checkpoint).path
    assert made is not None
    os.utime(made)  # not verified yet, as it now is
    with monkeypatch.context() as while_it_is_read:
        while_it_is_read.setattr(packed_file, "read", read_and_replace)
        assert find(checkpoint) is not None
    assert find(checkpoint) is None


def test_a_file_is_hashed_once_for_as_long_as_it_is_unchanged(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(checkpoint).path
    assert path is not None

    def refuse(_: PackedWeights) -> str:
        raise AssertionError("hashed again")

    monkeypatch.setattr(PackedWeights, "hash", refuse)
    assert find(checkpoint) is not None
    os.utime(path)
    with pytest.raises(AssertionError, match="hashed again"):
        find(checkpoint)


def test_a_read_only_checkpoint_keeps_them_in_the_users_cache(
    checkpoint: Path, cache: Path
) -> None:
    (checkpoint / FOLDER).write_text("")  # stands in the way, as a read-only directory would
    path = make(checkpoint).path
    assert path is not None
    assert cache in path.parents
    assert find(checkpoint) is not None


def test_with_no_place_to_write_they_stay_in_memory(checkpoint: Path, cache: Path) -> None:
    (checkpoint / FOLDER).write_text("")
    cache.mkdir()
    (cache / "tunan").write_text("")
    sidecar = Sidecar.of(checkpoint, PACKING)
    made = sidecar.make("layers.0.qkv", "w8", SIZE, fill)
    assert (made.path, sidecar.unkept) == (None, 1)
    assert int(made.data[252]) == 1
    assert _permissions(made.data.data_ptr()) == "rw-p"


def _permissions(address: int) -> str:
    """Of the mapping at an address of this process, as /proc/self/maps has them."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, permissions, *_ = line.split()
        first, end = (int(number, 16) for number in addresses.split("-"))
        if first <= address < end:
            return permissions
    raise AssertionError("nothing is mapped there")


def test_what_is_no_checkpoint_keeps_nothing(tmp_path: Path) -> None:
    assert Sidecar.of(tmp_path / "an/unknown-model", PACKING).places == ()
