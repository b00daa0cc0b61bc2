"""One layer's packed weights as a file: a page of header, then what the kernels read in place.

Written in full under another name, then renamed; mapped read-only, so that all processes that
open it share its pages with the page cache and with each other.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import json
import mmap
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import torch

MAGIC = b"TUNANPK1"
HEADER_BYTES = 4096
_UNFINISHED = ".tmp"

# Fills a tensor of uint8 with packed weights.
Pack = Callable[[torch.Tensor], None]


@dataclass(frozen=True)
class PackedWeights:
    """Packed weights `data` [bytes] uint8, not to be written to.

    `owner` keeps the memory alive; `path` is the file they are mapped from, if any, `sha256` what
    its header says that they hash to, and `status` that of the file that was opened.
    """

    data: torch.Tensor
    owner: object
    path: Path | None = None
    sha256: str = ""
    status: os.stat_result | None = None

    @property
    def content(self) -> memoryview:
        """The weights as bytes; valid as long as this object is."""
        array = (ctypes.c_ubyte * self.data.numel()).from_address(self.data.data_ptr())
        return memoryview(array).cast("B")

    def hash(self) -> str:
        """The sha256 (hex) of the weights as they are."""
        return hashlib.sha256(self.content).hexdigest()


def in_memory(size: int, pack: Pack) -> PackedWeights:
    """Packs `size` bytes into private memory, in huge pages where the kernel has them."""
    # Private: shared memory would be of shmem, which has its own switch for huge pages, mostly off.
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE)
    _ask_for_huge_pages(memory)
    data = torch.frombuffer(memory, dtype=torch.uint8)
    pack(data)
    return PackedWeights(data, memory)


def write(path: Path, key: str, size: int, pack: Pack) -> PackedWeights:
    """Packs `size` bytes, writes them to a new file at `path` and maps that.

    Raises OSError if there is no room or no permission; nothing of it is left then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not named after the process: those of two containers may have the same number.
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(8)}{_UNFINISHED}")
    try:
        with _among_writers(path.parent), unfinished.open("xb", buffering=0) as file:
            # Written in one piece, not through a mapping: so the page cache holds it in large
            # pieces, which the kernel (where it can) maps with huge pages.
            packed = in_memory(size, pack)
            for part in (_header(key, size, packed.hash()), packed.content):
                _write_all(file, part)
            os.fsync(file.fileno())
            unfinished.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
    written = read(path, key, size)
    if written is None:
        raise OSError(f"{path} changed while it was written")
    return written


def read(path: Path, key: str, size: int) -> PackedWeights | None:
    """Maps the file if it is there, of this `key` and of `size` bytes; its content is not read."""
    try:
        with path.open("rb") as file:
            header = _parse(file.read(HEADER_BYTES))
            status = os.fstat(file.fileno())
            if status.st_size != HEADER_BYTES + size or header.get("key") != key:
                return None
            # Private, so that PyTorch takes it as writable; nobody writes, so pages stay shared.
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError, RecursionError):  # the last from a header that is all brackets
        return None
    _ask_for_huge_pages(memory)
    data = torch.frombuffer(memory, dtype=torch.uint8, offset=HEADER_BYTES)
    return PackedWeights(data, memory, path, str(header.get("sha256", "")), status)


@contextlib.contextmanager
def _among_writers(folder: Path) -> Iterator[None]:
    """Holds a lock that writers share; who finds none of them sweeps up what killed ones left."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Where a file system has no locks, nothing is swept.
        with contextlib.suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in folder.glob(f"*{_UNFINISHED}"):
                left.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_SH)
        yield
    finally:
        os.close(opened)


def _write_all(file: FileIO, part: bytes | memoryview) -> None:
    left = memoryview(part)
    while left:
        left = left[file.write(left) :]


def _header(key: str, size: int, digest: str) -> bytes:
    text = json.dumps({"key": key, "bytes": size, "sha256": digest}).encode()
    return (MAGIC + text).ljust(HEADER_BYTES, b"\0")


def _parse(header: bytes) -> dict[str, object]:
    if not header.startswith(MAGIC):
        return {}
    content = json.loads(header[len(MAGIC) :].rstrip(b"\0"))
    return content if isinstance(content, dict) else {}


def _ask_for_huge_pages(memory: mmap.mmap) -> None:
    # A file system without them says EINVAL, which changes nothing but speed.
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
