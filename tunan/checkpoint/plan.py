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
from tunan.checkpoint.quantize.compressed_tensors import SCALE_SUFFIX
from tunan.checkpoint.quantize.kv_cache import in_layer_order
from tunan.checkpoint.quantize.scheme import Quantised, WeightScheme
from tunan.checkpoint.quantize.which_layers import is_quantised
from tunan.checkpoint.source import TensorInfo

MIB = 1 << 20
# JSON around a tensor's name in the header: dtype, shape, offsets; and the file's length field.
_HEADER_BYTES_PER_TENSOR = 160
_HEADER_BYTES_PER_FILE = 128


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a block: what it is called, how it is written, what it is made of.

    `quantised` is set in the integers of a quantised weight and in its scales, whose parts are
    those of the weight.
    """

    name: str
    dtype: str
    shape: Shape
    parts: tuple[Part, ...]
    quantised: Quantised | None = None

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


@dataclass(frozen=True)
class Layout:
    """What decides the blocks of a conversion beside the source: the number format of what is
    not quantised, the scheme of what is (None: nothing), the largest block in bytes, whether
    the cache is int8 too, which tensors are held in the scheme's `finer` instead."""

    precision: Precision
    limit: int
    weights: WeightScheme | None = None
    int8_cache: bool = False
    finer: frozenset[str] = frozenset()


def plan_plain(
    config: Mapping[str, Any],
    inventory: Inventory,
    tensors: Mapping[str, TensorInfo],
    layout: Layout,
) -> list[PlannedBlock]:
    """Blocks of the Hugging Face layout, each at most `layout.limit` bytes with its header."""
    entries: list[Entry] = []
    unexpected = set(inventory.unexpected)
    for name in in_layer_order(inventory.names, tensors):
        info = tensors[name]
        rows = info.shape[0] if info.shape else 1
        whole = FusedParameter(name, tuple(info.shape), (Part(name, 0, rows),))
        quantised = name not in unexpected
        entries += _entries(config, whole, tensors, layout, quantised=quantised)
    return _name("", cut(entries, layout.limit), None)


def plan_rank(
    config: Mapping[str, Any],
    tensors: Mapping[str, TensorInfo],
    layout: Layout,
    parallel: tuple[int, int],
    *,
    mtp: bool,
) -> list[PlannedBlock]:
    """Blocks of one tensor-parallel rank; `parallel` is (degree, rank)."""
    degree, rank = parallel
    entries = [
        entry
        for parameter in fused_parameters(config, degree, rank, mtp=mtp)
        for entry in _entries(config, parameter, tensors, layout)
    ]
    return _name(rank_directory(degree, rank) + "/", cut(entries, layout.limit), rank)


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


def _entries(
    config: Mapping[str, Any],
    parameter: FusedParameter,
    tensors: Mapping[str, TensorInfo],
    layout: Layout,
    *,
    quantised: bool = True,
) -> list[Entry]:
    """A parameter as it is written: one tensor, or integers and their scales."""
    sources = [tensors[part.tensor] for part in parameter.parts if part.tensor is not None]
    first, scheme = sources[0], layout.weights
    if quantised and scheme and is_quantised(config, first.name, first.shape):
        finer = first.name in layout.finer
        return _quantised_entries(parameter, scheme.finer if finer else scheme)
    dtype = written_dtype(first.name, first.dtype, layout.precision)
    return [Entry(parameter.name, dtype, parameter.shape, parameter.parts)]


def _quantised_entries(parameter: FusedParameter, scheme: WeightScheme) -> list[Entry]:
    *leading, columns = parameter.shape
    scales = (*leading, scheme.groups(columns))
    values = Quantised(scheme, "values")
    return [
        Entry(parameter.name, "I8", parameter.shape, parameter.parts, values),
        Entry(
            parameter.name + SCALE_SUFFIX,
            scheme.scale_dtype,
            scales,
            parameter.parts,
            Quantised(scheme, "scale"),
        ),
    ]


def inputs_of(block: PlannedBlock) -> Iterator[str]:
    """The source tensors a block is made of."""
    for entry in block.entries:
        for part in entry.parts:
            if part.tensor is not None:
                yield part.tensor
