"""Which bytes of the plain blocks a tensor-parallel rank will touch.

The engine's own weight loaders do the cutting, on mapped tensors, so these ranges only
decide what is read ahead: a wrong one costs time, never a wrong weight.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tunan.checkpoint.parallel import fused_parameters
from tunan.checkpoint.safetensors_header import StoredTensor
from tunan.engine.layout import PlannedBlock
from tunan.errors import TunanError

Range = tuple[int, int]
Rows = tuple[int, int]


def whole_tensors(block: PlannedBlock) -> list[Range]:
    """Every byte of every needed tensor, neighbours joined."""
    return _joined([(tensor.start, tensor.stop) for tensor in block.tensors])


def rank_rows(config: Mapping[str, Any], degree: int, rank: int) -> dict[str, Rows]:
    """The rows of each tensor that rank `rank` of `degree` keeps, all columns of them or some.

    Empty, so that everything is read, for a model that this project cannot cut.
    """
    try:
        parameters = fused_parameters(config, degree, rank)
    except TunanError:
        return {}
    return {
        part.tensor: (part.start, part.stop)
        for parameter in parameters
        for part in parameter.parts
        if part.tensor is not None
    }


def ranges_of(rows: Mapping[str, Rows]) -> Callable[[PlannedBlock], list[Range]]:
    """As `whole_tensors`, cut to `rows`, of which every page is touched if columns are cut."""

    def ranges(block: PlannedBlock) -> list[Range]:
        return _joined([_cut(tensor, rows.get(tensor.name)) for tensor in block.tensors])

    return ranges


def _cut(tensor: StoredTensor, rows: Rows | None) -> Range:
    if rows is None or not tensor.shape:
        return tensor.start, tensor.stop
    row_bytes = (tensor.stop - tensor.start) // tensor.shape[0]
    return tensor.start + rows[0] * row_bytes, tensor.start + rows[1] * row_bytes


def _joined(ranges: Sequence[Range]) -> list[Range]:
    joined: list[Range] = []
    for start, stop in ranges:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        elif start < stop:
            joined.append((start, stop))
    return joined
