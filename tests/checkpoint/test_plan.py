"""Where the block plan cuts."""

from math import prod
from pathlib import Path

import pytest

from tunan.checkpoint.blocks import header_of
from tunan.checkpoint.inventory import Inventory
from tunan.checkpoint.parallel import Part
from tunan.checkpoint.plan import Entry, Layout, PlannedBlock, cut, plan_plain
from tunan.checkpoint.precision import PRECISIONS
from tunan.checkpoint.source import TensorInfo

LIMIT = 10_000


def entry(name: str, size: int) -> Entry:
    return Entry(name, "U8", (size,), (Part(name, 0, size),))


def layer(index: int, *sizes: int) -> list[Entry]:
    return [entry(f"model.layers.{index}.t{at}.weight", size) for at, size in enumerate(sizes)]


def layers_of(blocks: list[list[Entry]]) -> list[tuple[int, ...]]:
    return [PlannedBlock("", tuple(block)).layers for block in blocks]


def test_whole_layers_fill_a_block() -> None:
    entries = [e for index in range(5) for e in layer(index, 2000, 2000)]
    assert layers_of(cut(entries, LIMIT)) == [(0, 1), (2, 3), (4,)]


def test_a_layer_that_does_not_fit_the_rest_of_a_block_begins_the_next() -> None:
    assert layers_of(cut([*layer(0, 4000), *layer(1, 4000, 4000)], LIMIT)) == [(0,), (1,)]


def test_a_layer_larger_than_a_block_is_spread_over_blocks_of_its_own() -> None:
    entries = [*layer(0, 1000), *layer(1, 6000, 6000, 1000), *layer(2, 1000)]
    blocks = cut(entries, LIMIT)
    assert layers_of(blocks) == [(0,), (1,), (1,), (2,)]


def test_a_tensor_larger_than_a_block_stands_alone() -> None:
    blocks = cut([*layer(0, 100, 50_000, 100)], LIMIT)
    assert [[e.bytes for e in block] for block in blocks] == [[100], [50_000], [100]]


def test_what_is_outside_the_layers_shares_no_block_with_them() -> None:
    entries = [
        entry("model.embed_tokens.weight", 100),
        *layer(0, 100),
        entry("model.norm.weight", 8),
    ]
    assert layers_of(cut(entries, LIMIT)) == [(), (0,), ()]


def test_no_tensor_is_lost_or_moved() -> None:
    entries = [e for index in range(7) for e in layer(index, 3000, 50, 12_000 * (index % 2) + 1)]
    assert [e for block in cut(entries, LIMIT) for e in block] == entries


@pytest.mark.parametrize("size", [1, 37, 2500])
def test_a_block_of_many_tensors_stays_within_the_limit_with_its_header(size: int) -> None:
    entries = [e for index in range(40) for e in layer(index, *[size] * 20)]
    for block in cut(entries, LIMIT):
        planned = PlannedBlock("", tuple(block))
        assert planned.bytes + len(header_of(planned)) <= LIMIT


def test_tensors_in_a_block_are_aligned_without_gaps(tmp_path: Path) -> None:
    shapes = {"a": ("BF16", (3,)), "b": ("F32", (5,)), "c": ("BF16", (64, 2)), "d": ("U8", (1,))}
    tensors = {
        name: TensorInfo(name, shape, dtype, 0, tmp_path) for name, (dtype, shape) in shapes.items()
    }
    inventory = Inventory(tuple(shapes), (), (), False)
    (block,) = plan_plain({}, inventory, tensors, Layout(PRECISIONS["bfloat16"], 1 << 20))
    offset = 0
    for planned in block.entries:
        item = planned.bytes // prod(planned.shape)
        assert offset % item == 0
        offset += planned.bytes
    assert block.entries[0].name == "c"
