"""The block plan: which tensors go into which safetensors file.

A block holds whole layers as long as they fit; a layer larger than a block is spread over
blocks of its own, a tensor larger than a block stands alone. What lies outside the layers
(embedding, norm, head) keeps its place before and after them and shares no block with them.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Any

from tunan.checkpoint.architectures import Shape, layer_of
from tunan.checkpoint.inventory import Inventory
from tunan.checkpoint.manifest import rank_directory
from tunan.checkpoint.parallel import FusedParameter, Part, fused_parameters
from tunan.checkpoint.precision import ITEM_BYTES, Precision, written_dtype
from tunan.checkpoint.source import TensorInfo

MIB = 1 << 20
# JSON around a tensor's name in the header: dtype, shape, offsets; and the file's length field.
_HEADER_BYTES_PER_TENSOR = 160
_HEADER_BYTES_PER_FILE = 128


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a block: what it is called, how it is written, what it is made of."""

    name: str
    dtype: str
    shape: Shape
    parts: tuple[Part, ...]

    @property
    def bytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def row_elements(self) -> int:
        """Elements of one row as `Part` counts rows."""
        return prod(self.shape) // max(1, sum(part.rows for part in self.parts))


@dataclass(frozen=True)
class PlannedBlock:
    """A block to write: its file relative to the checkpoint, its tensors in file order."""

    file: str
    entries: tuple[Entry, ...]
    rank: int | None = None

    @property
    def bytes(self) -> int:
        """Bytes of tensor data; the header comes on top."""
        return sum(entry.bytes for entry in self.entries)

    @property
    def layers(self) -> tuple[int, ...]:
        found = {layer_of(entry.name) for entry in self.entries}
        return tuple(sorted(layer for layer in found if layer is not None))


def plan_plain(
    inventory: Inventory, tensors: Mapping[str, TensorInfo], precision: Precision, limit: int
) -> list[PlannedBlock]:
    """Blocks of the Hugging Face layout, each at most `limit` bytes with its header."""
    entries = []
    for name in inventory.names:
        info = tensors[name]
        rows = info.shape[0] if info.shape else 1
        dtype = written_dtype(name, info.dtype, precision)
        entries.append(Entry(name, dtype, tuple(info.shape), (Part(name, 0, rows),)))
    return _name("", cut(entries, limit), None)


def plan_rank(
    config: Mapping[str, Any],
    tensors: Mapping[str, TensorInfo],
    precision: Precision,
    limit: int,
    parallel: tuple[int, int],
    *,
    mtp: bool,
) -> list[PlannedBlock]:
    """Blocks of one tensor-parallel rank; `parallel` is (degree, rank)."""
    degree, rank = parallel
    entries = [
        _fused_entry(parameter, tensors, precision)
        for parameter in fused_parameters(config, degree, rank, mtp=mtp)
    ]
    return _name(rank_directory(degree, rank) + "/", cut(entries, limit), rank)


def cut(entries: Iterable[Entry], limit: int) -> list[list[Entry]]:
    """Groups entries, given in order of use, into blocks of at most `limit` bytes."""
    blocks: list[list[Entry]] = []
    open_block: list[Entry] = []
    for layer, group in groupby(entries, key=lambda entry: layer_of(entry.name)):
        members = list(group)
        outside = layer is None
        room = limit - _size(open_block)
        joins = open_block and (layer_of(open_block[0].name) is None) == outside
        if joins and _size(members) - _HEADER_BYTES_PER_FILE <= room:
            open_block += members
            continue
        if open_block:
            blocks.append(open_block)
        *whole, open_block = _split(members, limit)
        blocks += whole
        if whole:  # the rest of a layer that was split shares no block with the next layer
            blocks.append(open_block)
            open_block = []
    if open_block:
        blocks.append(open_block)
    return blocks


def _split(members: list[Entry], limit: int) -> list[list[Entry]]:
    """One layer's entries as few blocks as they need, never cutting a tensor."""
    blocks: list[list[Entry]] = [[]]
    size = _HEADER_BYTES_PER_FILE
    for entry in members:
        if blocks[-1] and size + _entry_size(entry) > limit:
            blocks.append([])
            size = _HEADER_BYTES_PER_FILE
        blocks[-1].append(entry)
        size += _entry_size(entry)
    return blocks


def _size(entries: list[Entry]) -> int:
    return _HEADER_BYTES_PER_FILE + sum(_entry_size(entry) for entry in entries)


def _entry_size(entry: Entry) -> int:
    return entry.bytes + len(json.dumps(entry.name)) + _HEADER_BYTES_PER_TENSOR


def _name(prefix: str, blocks: list[list[Entry]], rank: int | None) -> list[PlannedBlock]:
    total = len(blocks)
    return [
        PlannedBlock(
            f"{prefix}model-{index:05d}-of-{total:05d}.safetensors",
            tuple(sorted(entries, key=_alignment)),
            rank,
        )
        for index, entries in enumerate(blocks, start=1)
    ]


def _alignment(entry: Entry) -> tuple[bool, int]:
    """Sort key that keeps every tensor aligned although the format allows no gaps: first those
    that end on a multiple of 64 bytes, then the others by falling element size."""
    return entry.bytes % 64 != 0, -ITEM_BYTES[entry.dtype]


def _fused_entry(
    parameter: FusedParameter, tensors: Mapping[str, TensorInfo], precision: Precision
) -> Entry:
    dtypes = {
        written_dtype(part.tensor, tensors[part.tensor].dtype, precision)
        for part in parameter.parts
        if part.tensor is not None
    }
    return Entry(parameter.name, dtypes.pop(), parameter.shape, parameter.parts)


def inputs_of(block: PlannedBlock) -> Iterator[str]:
    """The source tensors a block is made of."""
    for entry in block.entries:
        for part in entry.parts:
            if part.tensor is not None:
                yield part.tensor
