"""A source held in memory, and the odds and ends of a conversion under test."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tunan.checkpoint.convert import ConvertOptions, Outcome, convert, plan_conversion
from tunan.checkpoint.destination import Destination
from tunan.checkpoint.source import Source, TensorInfo, open_source

CODES = {
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.uint8: "U8",
}


class MemorySource:
    """A source whose tensors are given; `row_multiple` is enforced as a real one would.

    Stands in for formats in the tests of what comes after them; real files are used wherever
    the file itself matters. `file` must exist, its size is watched.
    """

    def __init__(
        self,
        file: Path,
        tensors: Mapping[str, Tensor],
        config: Mapping[str, Any] | None = None,
        row_multiple: int = 1,
    ) -> None:
        file.touch()
        self.path = file
        self.config = dict(config or {})
        self.auxiliary: Mapping[str, bytes] = {"tokenizer.json": b"{}"}
        self.tensors = {
            name: TensorInfo(
                name, tuple(t.shape), CODES[t.dtype], t.nbytes, file, row_multiple if t.dim() else 1
            )
            for name, t in tensors.items()
        }
        self._data = dict(tensors)
        self.released: set[str] = set()

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        tensor, info = self._data[name], self.tensors[name]
        if not tensor.dim():
            return tensor
        assert start % info.row_multiple == 0
        assert stop % info.row_multiple == 0 or stop == tensor.shape[0]
        return tensor[start:stop]

    def fingerprint(self) -> str:
        return hashlib.sha256(repr(self.tensors).encode()).hexdigest()

    def release(self, name: str) -> None:
        self.released.add(name)


@dataclass
class Recorder:
    """Progress that keeps what it is told; `on_begin` and `on_advance` let a test interfere."""

    on_begin: Callable[[], None] = lambda: None
    on_advance: Callable[[int], None] = lambda done: None
    total: int = 0
    done: int = 0
    reused: int = 0
    restarted: bool = False

    def begin(self, total_bytes: int, blocks: int, reused: int, restarted: bool) -> None:
        self.total, self.reused, self.restarted = total_bytes, reused, restarted
        self.on_begin()

    def advance(self, count: int) -> None:
        self.done += count
        self.on_advance(self.done)


def run_conversion(
    source: Source | Path,
    destination: Path,
    options: ConvertOptions | None = None,
    progress: Recorder | None = None,
) -> Outcome:
    """Plans and converts, as `tunan convert` does."""
    opened = open_source(source) if isinstance(source, Path) else source
    options = options or ConvertOptions()
    place = Destination(destination)
    return convert(opened, place, plan_conversion(opened, options), options, progress or Recorder())
