"""The header of a GGUF file, read strictly: metadata, and where each tensor lies.

Written apart from the `gguf` package's reader, which loops for ever over some damaged
files and keeps a NumPy array per vocabulary entry.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from tunan.checkpoint.mapped_file import MappedFile
from tunan.checkpoint.source import GGUF_MAGIC
from tunan.errors import CheckFailedError

VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
STRING, ARRAY = 8, 9
# Value type -> struct code; the numbers are the format's.
SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
# llama.cpp's own limit (GGML_MAX_DIMS).
MAX_DIMENSIONS = 4


@dataclass(frozen=True)
class GGUFTensor:
    """One tensor: `shape` in the order of NumPy, bytes [start, stop) of the file."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    start: int
    stop: int


@dataclass(frozen=True)
class GGUFFile:
    """An open GGUF file: its metadata as Python values, its tensors in file order."""

    file: MappedFile
    metadata: dict[str, Any]
    tensors: tuple[GGUFTensor, ...]


def read_gguf(path: Path) -> GGUFFile:
    """Reads the header. Raises `CheckFailedError`, naming the file, for whatever is damaged."""
    file = MappedFile(path)
    cursor = _Cursor(file)
    if cursor.take(4) != GGUF_MAGIC:
        raise cursor.damaged("does not begin with 'GGUF'")
    version = cursor.number("I")
    if version not in VERSIONS:
        if version & 0xFFFF == 0:
            raise cursor.damaged("big-endian; convert it to little-endian")
        raise cursor.damaged(f"GGUF version {version}; Tunan reads 2 and 3")
    tensor_count, entry_count = cursor.number("Q"), cursor.number("Q")
    metadata: dict[str, Any] = {}
    for _ in cursor.items(entry_count, 8 + 4 + 1):
        key = cursor.name()
        if key in metadata:
            raise cursor.damaged(f"metadata key '{key}' is there twice")
        metadata[key] = cursor.value(cursor.number("I"))
    infos = [cursor.tensor_info() for _ in cursor.items(tensor_count, 8 + 4 + 4 + 8)]
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        raise cursor.damaged(f"general.alignment is {alignment!r}")
    data = cursor.offset + -cursor.offset % alignment
    tensors = [_place(file, data, *info) for info in infos]
    tensors.sort(key=lambda tensor: tensor.start)
    _refuse_overlaps(file, tensors)
    return GGUFFile(file, metadata, tuple(tensors))


class _Cursor:
    """Reads one value after the other and never past the end of the file."""

    def __init__(self, file: MappedFile) -> None:
        self._file = file
        self.offset = 0

    def damaged(self, what: str) -> CheckFailedError:
        return CheckFailedError(f"{self._file.path}: damaged or unsupported GGUF: {what}")

    def take(self, count: int) -> bytes:
        end = self.offset + count
        if end > self._file.size:
            raise self.damaged(f"truncated: byte {end} is needed, the file has {self._file.size}")
        data = self._file.bytes[self.offset : end]
        self.offset = end
        return data

    def items(self, count: int, smallest: int) -> range:
        """`count` items of at least `smallest` bytes each are still to come."""
        if count * smallest > self._file.size - self.offset:
            raise self.damaged(f"truncated: {count} entries are announced")
        return range(count)

    def number(self, code: str) -> Any:
        (value,) = struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))
        return value

    def string(self) -> str:
        try:
            return self.take(self.number("Q")).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.damaged(f"a string before byte {self.offset} is not UTF-8") from error

    def name(self) -> str:
        """A string that is fit to be shown."""
        name = self.string()
        if not name.isprintable():
            raise self.damaged(f"a name with control characters: {name!r}")
        return name

    def value(self, kind: int) -> Any:
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self._array(self.number("I"), self.number("Q"))
        raise self.damaged(f"unknown metadata type {kind}")

    def _array(self, kind: int, count: int) -> list[Any]:
        if kind == STRING:
            return [self.string() for _ in self.items(count, 8)]
        if kind not in SCALARS:
            raise self.damaged(f"unknown metadata array type {kind}")
        code = SCALARS[kind]
        self.items(count, struct.calcsize("<" + code))
        return list(struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize(code))))

    def tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.name()
        dimensions = self.number("I")
        if dimensions > MAX_DIMENSIONS:
            raise self.damaged(f"tensor '{name}' has {dimensions} dimensions")
        shape = tuple(self.number("Q") for _ in range(dimensions))
        return name, shape[::-1], self.number("I"), self.number("Q")


def _place(
    file: MappedFile, data: int, name: str, shape: tuple[int, ...], kind: int, offset: int
) -> GGUFTensor:
    where = f"{file.path}: tensor '{name}'"
    try:
        known = GGMLQuantizationType(kind)
    except ValueError as error:
        raise CheckFailedError(f"{where}: unknown GGML type {kind}") from error
    block, block_bytes = GGML_QUANT_SIZES[known]
    if not shape or not all(shape) or shape[-1] % block:
        raise CheckFailedError(f"{where}: damaged: {known.name} of shape {list(shape)}")
    start = data + offset
    stop = start + prod(shape) // block * block_bytes
    if stop > file.size:
        raise CheckFailedError(
            f"{where}: truncated: it ends at byte {stop}, the file has {file.size}"
        )
    return GGUFTensor(name, shape, known, start, stop)


def _refuse_overlaps(file: MappedFile, tensors: list[GGUFTensor]) -> None:
    names: set[str] = set()
    end = 0
    for tensor in tensors:
        where = f"{file.path}: tensor '{tensor.name}'"
        if tensor.name in names:
            raise CheckFailedError(f"{where}: damaged: it is there twice")
        if tensor.start < end:
            raise CheckFailedError(f"{where}: damaged: it overlaps the one before it")
        names.add(tensor.name)
        end = tensor.stop
