"""Writes one block: streamed from the source and hashed on the way.

A block appears under its name only once it is whole and on the disk.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tunan.checkpoint.chunks import ChunkReader
from tunan.checkpoint.manifest import Block
from tunan.checkpoint.plan import Entry, PlannedBlock, inputs_of
from tunan.checkpoint.quantize.streaming import RoundingError
from tunan.errors import CheckFailedError

DATA_ALIGNMENT = 64
METADATA_KEY = "__metadata__"

Advance = Callable[[int], None]


@dataclass(frozen=True)
class Written:
    """A block on the disk, and the relative error of each weight that was quantised for it
    (only of the plain layout: a rank's are the same again)."""

    block: Block
    errors: Mapping[str, float]


def write_block(
    reader: ChunkReader, block: PlannedBlock, directory: Path, advance: Advance
) -> Written:
    """Writes `directory / block.file`.

    `advance` is told the bytes after each chunk and may raise to stop. Raises what
    `ChunkReader.chunks` raises, and OSError if the disk refuses; then nothing of the block
    is left.
    """
    path = directory / block.file
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".tmp")
    try:
        with unfinished.open("wb") as file:
            digest, size, errors = _stream(reader, block, file, advance)
            file.flush()
            os.fsync(file.fileno())
            # A model larger than memory must not push everything else out of it.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        unfinished.rename(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    for name in inputs_of(block):
        reader.source.release(name)
    sync_directory(path.parent)
    line = Block(file=block.file, bytes=size, sha256=digest, layers=block.layers, rank=block.rank)
    return Written(line, errors)


def header_of(block: PlannedBlock) -> bytes:
    """The safetensors header, padded so that the data after it starts at a multiple of 64."""
    header: dict[str, object] = {METADATA_KEY: {"format": "pt"}}
    offset = 0
    for entry in block.entries:
        end = offset + entry.bytes
        header[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % DATA_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def sync_directory(path: Path) -> None:
    """Makes the names in a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _stream(
    reader: ChunkReader, block: PlannedBlock, file: BinaryIO, advance: Advance
) -> tuple[str, int, dict[str, float]]:
    header = header_of(block)
    digest = hashlib.sha256(header)
    file.write(header)
    size = len(header)
    errors: dict[str, float] = {}
    for entry in block.entries:
        error = RoundingError() if _is_counted(block, entry) else None
        for chunk in reader.chunks(entry, error):
            digest.update(chunk)
            file.write(chunk)
            size += len(chunk)
            advance(len(chunk))
        if error is not None:
            errors[entry.name] = error.relative
    if size != len(header) + block.bytes:
        raise CheckFailedError(
            f"{reader.source.path}: {block.file} came to {size} bytes instead of "
            f"{len(header) + block.bytes}; the source disagrees with its own header"
        )
    return digest.hexdigest(), size, errors


def _is_counted(block: PlannedBlock, entry: Entry) -> bool:
    return block.rank is None and entry.quantised is not None and entry.quantised.role == "values"
