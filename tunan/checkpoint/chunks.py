"""Reads parts of a source a few MiB at a time, converted and checked for NaN and overflow."""

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from tunan.checkpoint.parallel import Part
from tunan.checkpoint.plan import Entry
from tunan.checkpoint.precision import FLOATS, ITEM_BYTES, torch_dtype
from tunan.checkpoint.quantize.rounding import round_to_scales
from tunan.checkpoint.quantize.scheme import Quantised, Rounded
from tunan.checkpoint.quantize.streaming import RoundingError, ScaleCache
from tunan.checkpoint.source import Source, TensorInfo
from tunan.errors import CheckFailedError

if TYPE_CHECKING:
    import torch

# Elements converted at a time. A source that dequantises makes float32 of them with a few
# temporaries of that size: about 40 MB a worker at the worst.
CHUNK_ELEMENTS = 2 << 20
# Fewer where weights are quantised, which takes a few float32 copies more.
QUANTISED_ELEMENTS = 1 << 19
BF16_LARGEST = 3.3895314e38


class ChunkReader:
    """Serves the bytes of a block's tensors, piece by piece; threads may share one.

    Memory a call holds is a few times `CHUNK_ELEMENTS` (or one row, if that is longer),
    whatever the size of the tensor. `integers` are those of weights that were rounded before,
    by name, and their scales.
    """

    def __init__(self, source: Source, integers: Mapping[str, Rounded] | None = None) -> None:
        self.source = source
        self._integers = integers or {}
        self._scales = ScaleCache()
        self._sizes: dict[Path, int] = {}
        for info in source.tensors.values():
            if info.file not in self._sizes:
                self._sizes[info.file] = info.file.stat().st_size

    def chunks(self, entry: Entry, error: RoundingError | None = None) -> Iterator[memoryview]:
        """The bytes of one tensor of a block, in order; `error` is told what quantising costs.

        Raises CheckFailedError for a NaN or infinity, for a value too large for the number
        format it is written in, and for a source file that shrinks meanwhile.
        """
        for part in entry.parts:
            if part.tensor is None:
                yield from _zeros(entry, part)
                continue
            info = self.source.tensors[part.tensor]
            if entry.quantised:
                yield from self._quantised(entry, entry.quantised, info, part, error)
                continue
            for start, stop in ranges(info, part, CHUNK_ELEMENTS):
                rows = _columns(self._read(info, start, stop), part)
                yield _bytes_of(_convert(rows, entry, info))

    def _quantised(
        self,
        entry: Entry,
        quantised: Quantised,
        info: TensorInfo,
        part: Part,
        error: RoundingError | None,
    ) -> Iterator[memoryview]:
        """A scale for each row or group of it, or the integers; a rank that has some of the
        columns has the scales of the whole rows, so that its products add up to theirs."""
        scheme = quantised.scheme
        for start, stop in ranges(info, part, QUANTISED_ELEMENTS):
            rows = self._read(info, start, stop)
            if not _is_finite(rows):
                raise CheckFailedError(_explain(rows, entry, info))
            found = self._integers.get(info.name)
            scales = (
                self._scales.of(info.name, start, rows, scheme)
                if found is None
                else found[1][start:stop]
            )
            if quantised.role == "scale":
                stored = scales.to(torch_dtype(entry.dtype))
                yield _bytes_of(_columns(stored, part, scheme.group) if scheme.group else stored)
                continue
            integers = (
                round_to_scales(rows, scales, scheme) if found is None else found[0][start:stop]
            )
            if error is not None:
                error.add(rows, integers, scales)
            yield _bytes_of(_columns(integers, part).contiguous())

    def _read(self, info: TensorInfo, start: int, stop: int) -> "torch.Tensor":
        self._check_size(info.file)
        first = start - start % info.row_multiple
        last = min(info.shape[0], stop + -stop % info.row_multiple) if info.shape else 1
        rows = self.source.rows(info.name, first, last)
        if info.shape and (first, last) != (start, stop):
            rows = rows[start - first : stop - first]
        return rows

    def _check_size(self, file: Path) -> None:
        """Reading a mapped file past an end that moved would kill the process without a word."""
        try:
            size = file.stat().st_size
        except OSError as error:
            raise CheckFailedError(f"{file}: gone while it was read ({error.strerror})") from error
        if size < self._sizes[file]:
            raise CheckFailedError(f"{file}: was truncated while it was read; fetch it again")


def ranges(info: TensorInfo, part: Part, elements: int) -> Iterator[tuple[int, int]]:
    """Cuts a part's rows into about `elements` each, at multiples of what the source can be
    asked for."""
    rows = max(1, elements // max(1, prod(info.shape[1:])))
    step = -(-rows // info.row_multiple) * info.row_multiple
    start = part.start
    while start < part.stop:
        stop = min(part.stop, (start // step + 1) * step)
        yield start, stop
        start = stop


def _columns(rows: "torch.Tensor", part: Part, width: int = 1) -> "torch.Tensor":
    """The columns of a part, of which each of `rows` stands for `width`."""
    if part.columns is None:
        return rows
    return rows[:, part.columns[0] // width : part.columns[1] // width]


def _convert(rows: "torch.Tensor", entry: Entry, info: TensorInfo) -> "torch.Tensor":
    written = rows.to(torch_dtype(entry.dtype)).contiguous()
    if entry.dtype in FLOATS and written.numel() and not _is_finite(written):
        raise CheckFailedError(_explain(rows, entry, info))
    return written


def _is_finite(tensor: "torch.Tensor") -> bool:
    """One pass without a temporary: a NaN comes out as both extremes."""
    import torch

    low, high = torch.aminmax(tensor)
    return bool(torch.isfinite(low) and torch.isfinite(high))


def _explain(rows: "torch.Tensor", entry: Entry, info: TensorInfo) -> str:
    if not _is_finite(rows):
        kind = "NaN" if bool(rows.isnan().any()) else "infinity"
        return f"{info.file}: {info.name} holds {kind}; the file is damaged, fetch it again"
    largest = float(rows.abs().max())
    format_name = str(torch_dtype(entry.dtype)).removeprefix("torch.")
    wider = "bfloat16" if entry.dtype == "F16" and largest < BF16_LARGEST else "float32"
    return (
        f"{info.file}: {info.name} has a value of {largest:g}, too large for {format_name}; "
        f"use --dtype {wider}"
    )


def _zeros(entry: Entry, part: Part) -> Iterator[memoryview]:
    left = part.rows * entry.row_elements * ITEM_BYTES[entry.dtype]
    while left:
        size = min(left, CHUNK_ELEMENTS)
        yield memoryview(bytes(size))
        left -= size


def _bytes_of(tensor: "torch.Tensor") -> memoryview:
    import torch

    flat: memoryview = tensor.reshape(-1).view(torch.uint8).numpy().data
    return flat
