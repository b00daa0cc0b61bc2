from collections.abc import Callable
from pathlib import Path

import pytest

from tests.models import write_llama
from tunan.checkpoint.companions import read_config
from tunan.checkpoint.safetensors_header import read_header
from tunan.engine.layout import PlannedBlock
from tunan.engine.ranges import ranges_of, rank_rows


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "m")


def block(directory: Path, part: str = "") -> PlannedBlock:
    path = directory / "model.safetensors"
    tensors = tuple(t for t in read_header(path) if part in t.name)
    return PlannedBlock(path, "", path.stat().st_size, tensors, whole=True)


def rank_ranges(directory: Path, degree: int, rank: int) -> Callable[..., list[tuple[int, int]]]:
    return ranges_of(rank_rows(read_config(directory / "config.json"), degree, rank))


whole_tensors = ranges_of({})


def size(ranges: list[tuple[int, int]]) -> int:
    return sum(stop - start for start, stop in ranges)


def test_neighbouring_tensors_are_one_range(directory: Path) -> None:
    whole = block(directory)
    assert whole_tensors(whole) == [(whole.tensors[0].start, whole.tensors[-1].stop)]


@pytest.mark.parametrize("name", ["q_proj", "k_proj", "gate_proj", "up_proj"])
def test_a_rank_reads_its_own_rows_of_what_is_cut_by_rows(directory: Path, name: str) -> None:
    one = block(directory, f"layers.1.{'self_attn' if name[0] in 'qk' else 'mlp'}.{name}")
    parts = [rank_ranges(directory, 2, rank)(one) for rank in range(2)]
    start, stop = whole_tensors(one)[0]
    assert parts == [[(start, (start + stop) // 2)], [((start + stop) // 2, stop)]]


@pytest.mark.parametrize("name", ["o_proj", "down_proj", "input_layernorm"])
def test_a_rank_reads_all_of_what_is_cut_by_columns_or_whole(directory: Path, name: str) -> None:
    one = block(directory, f"layers.1.{name}") if name[0] == "i" else block(directory, name)
    assert size(rank_ranges(directory, 2, 1)(one)) == size(whole_tensors(one))


def test_a_model_that_cannot_be_cut_is_read_whole(directory: Path) -> None:
    one = block(directory)
    assert rank_ranges(directory, 3, 0)(one) == whole_tensors(one)
