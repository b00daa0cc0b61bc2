"""The header of a safetensors file, read strictly.

A file is `u64 n` (little-endian), `n` bytes of JSON, then the data. The JSON maps each
name to `dtype`, `shape` and `data_offsets` [begin, end) into the data, which the tensors
must cover without a hole or an overlap.
Source: the format's description at https://github.com/huggingface/safetensors.
"""

import json
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from tunan.checkpoint.source import LFS_POINTER_START, refuse_lfs_pointer
from tunan.errors import CheckFailedError

# The format's own limit; a longer header is a damaged length field.
HEADER_LIMIT = 100_000_000
# Sizes are signed 64-bit numbers in whatever reads them, also where another size is 0.
LARGEST_SIZE = (1 << 63) - 1

# Whole-byte types; the packed 4- and 6-bit ones have no PyTorch type to map them to.
DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class StoredTensor:
    """One entry: `start` and `stop` are byte offsets into the file, not into its data part."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def read_header(path: Path) -> list[StoredTensor]:
    """The tensors of the file in the order of their data.

    Raises `CheckFailedError`, naming the file and the tensor, for whatever is damaged:
    a file that ends early or late, bad JSON, an unknown dtype, a name twice, a shape that
    disagrees with its bytes, tensors that overlap or leave a hole.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = _header_length(path, file, size)
        entries = _parse_json(path, file.read(length))
    entries.pop("__metadata__", None)
    data = 8 + length
    tensors = [_tensor(path, name, entry, data) for name, entry in entries.items()]
    tensors.sort(key=lambda tensor: (tensor.start, tensor.stop))
    _check_cover(path, tensors, data, size)
    return tensors


def _header_length(path: Path, file: BinaryIO, size: int) -> int:
    start = file.read(len(LFS_POINTER_START))
    refuse_lfs_pointer(path, start)
    file.seek(8)
    if size < 8:
        raise CheckFailedError(f"{path}: truncated: {size} bytes are not even a header")
    length = int(struct.unpack("<Q", start[:8])[0])
    if length > HEADER_LIMIT:
        raise CheckFailedError(
            f"{path}: not a safetensors file: its header would be {length} bytes long"
        )
    if 8 + length > size:
        raise CheckFailedError(
            f"{path}: truncated: the header alone needs {8 + length} bytes, the file has {size}"
        )
    return length


def _parse_json(path: Path, text: bytes) -> dict[str, Any]:
    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise CheckFailedError(f"{path}: damaged header: {twice!r} is there twice")
        return entries

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=refuse_duplicates)
    except (ValueError, RecursionError) as error:
        raise CheckFailedError(f"{path}: damaged header: not JSON ({error})") from error
    if not isinstance(header, dict):
        raise CheckFailedError(f"{path}: damaged header: not a JSON object")
    return header


def _tensor(path: Path, name: str, entry: Any, data: int) -> StoredTensor:
    if not name.isprintable():
        raise CheckFailedError(f"{path}: damaged header: name with control characters: {name!r}")
    where = f"{path}: tensor '{name}'"
    if not isinstance(entry, dict):
        raise CheckFailedError(f"{where}: damaged header: its entry is not an object")
    dtype: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise CheckFailedError(f"{where}: unknown dtype {dtype!r}")
    if not _are_sizes(shape) or prod(max(size, 1) for size in shape) > LARGEST_SIZE:
        raise CheckFailedError(f"{where}: damaged header: shape {shape!r}")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckFailedError(f"{where}: damaged header: data_offsets {offsets!r}")
    needed = prod(shape) * DTYPE_BYTES[dtype]
    if offsets[1] - offsets[0] != needed:
        raise CheckFailedError(
            f"{where}: {dtype} {shape} needs {needed} bytes, "
            f"data_offsets gives it {offsets[1] - offsets[0]}"
        )
    return StoredTensor(name, dtype, tuple(shape), data + offsets[0], data + offsets[1])


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_cover(path: Path, tensors: list[StoredTensor], data: int, size: int) -> None:
    end = data
    for tensor in tensors:
        where = f"{path}: tensor '{tensor.name}'"
        if tensor.start < end:
            raise CheckFailedError(f"{where}: damaged header: it overlaps the one before it")
        if tensor.start > end:
            raise CheckFailedError(
                f"{where}: damaged header: {tensor.start - end} unused bytes before it"
            )
        if tensor.stop > size:
            raise CheckFailedError(
                f"{where}: truncated: it ends at byte {tensor.stop}, the file has {size}"
            )
        end = tensor.stop
    if end != size:
        raise CheckFailedError(f"{path}: {size - end} bytes after the last tensor; fetch it again")
