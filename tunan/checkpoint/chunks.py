"""Reads parts of a source a few MiB at a time, converted and checked for NaN and overflow."""

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from tunan.checkpoint.parallel import Part
from tunan.checkpoint.plan import Entry
from tunan.checkpoint.precision import FLOATS, ITEM_BYTES, torch_dtype
from tunan.checkpoint.source import Source, TensorInfo
from tunan.errors import CheckFailedError

if TYPE_CHECKING:
    import torch

# Elements converted at a time. A source that dequantises makes float32 of them with a few
# temporaries of that size: about 40 MB a worker at the worst.
CHUNK_ELEMENTS = 2 << 20
BF16_LARGEST = 3.3895314e38


class ChunkReader:
    """Serves the bytes of a block's tensors, piece by piece; threads may share one.

    Memory a call holds is a few times `CHUNK_ELEMENTS` (or one row, if that is longer),
    whatever the size of the tensor.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self._sizes: dict[Path, int] = {}
        for info in source.tensors.values():
            if info.file not in self._sizes:
                self._sizes[info.file] = info.file.stat().st_size

    def chunks(self, entry: Entry) -> Iterator[memoryview]:
        """The bytes of one tensor of a block, in order.

        Raises CheckFailedError for a NaN or infinity, for a value too large for the number
        format it is written in, and for a source file that shrinks meanwhile.
        """
        for part in entry.parts:
            if part.tensor is None:
                yield from _zeros(entry, part)
                continue
            info = self.source.tensors[part.tensor]
            for start, stop in ranges(info, part):
                yield _bytes_of(_convert(self._read(info, part, start, stop), entry, info))

    def _read(self, info: TensorInfo, part: Part, start: int, stop: int) -> "torch.Tensor":
        self._check_size(info.file)
        first = start - start % info.row_multiple
        last = min(info.shape[0], stop + -stop % info.row_multiple) if info.shape else 1
        rows = self.source.rows(info.name, first, last)
        if info.shape and (first, last) != (start, stop):
            rows = rows[start - first : stop - first]
        return rows if part.columns is None else rows[:, part.columns[0] : part.columns[1]]

    def _check_size(self, file: Path) -> None:
        """Reading a mapped file past an end that moved would kill the process without a word."""
        try:
            size = file.stat().st_size
        except OSError as error:
            raise CheckFailedError(f"{file}: gone while it was read ({error.strerror})") from error
        if size < self._sizes[file]:
            raise CheckFailedError(f"{file}: was truncated while it was read; fetch it again")


def ranges(info: TensorInfo, part: Part) -> Iterator[tuple[int, int]]:
    """Cuts a part's rows at multiples of what the source can be asked for."""
    rows = max(1, CHUNK_ELEMENTS // max(1, prod(info.shape[1:])))
    step = -(-rows // info.row_multiple) * info.row_multiple
    start = part.start
    while start < part.stop:
        stop = min(part.stop, (start // step + 1) * step)
        yield start, stop
        start = stop


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
