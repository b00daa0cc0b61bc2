"""A file in the address space, its pages asked for ahead and given back behind.

The mapping is private so that the tensors made from it count as writable (PyTorch warns
about any other), and never written to, so that all its pages stay file-backed: they are
the page cache's, not ours, and cost no anonymous memory.
"""

import ctypes
import mmap
from pathlib import Path

from tunan.errors import CheckFailedError

# Linux, the same on x86-64 and aarch64; Python's mmap module does not name it. Without it
# the kernel may refuse a private mapping larger than the machine's memory.
MAP_NORESERVE = 0x4000

# How far beyond the bytes asked for to read: deep enough for a disk array, small beside a block.
READ_AHEAD = 64 << 20


class MappedFile:
    """Read-only bytes of `path`, mapped whole. Raises `CheckFailedError` where it is empty."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size
        if not self.size:
            raise CheckFailedError(f"{path}: the file is empty; fetch it again")
        with path.open("rb") as file:
            self.bytes = mmap.mmap(
                file.fileno(),
                self.size,
                flags=mmap.MAP_PRIVATE | MAP_NORESERVE,
                prot=mmap.PROT_READ | mmap.PROT_WRITE,
            )
        self._asked = (0, 0)

    def will_need(self, start: int, stop: int) -> None:
        """Has the kernel begin to read bytes [start, stop) and `READ_AHEAD` more."""
        asked_start, asked_stop = self._asked
        if asked_start <= start and stop <= asked_stop:
            return
        first = start - start % mmap.PAGESIZE
        last = min(stop + READ_AHEAD, self.size)
        if first < last:
            self.bytes.madvise(mmap.MADV_WILLNEED, first, last - first)
            self._asked = (first, last)

    def release(self, start: int, stop: int) -> None:
        """Takes the whole pages inside [start, stop) out of this process's memory."""
        first = start + -start % mmap.PAGESIZE
        length = (stop if stop == self.size else stop - stop % mmap.PAGESIZE) - first
        if length > 0:
            self.bytes.madvise(mmap.MADV_DONTNEED, first, length)


def release_pages(address: int, length: int) -> None:
    """`MappedFile.release` for file-backed memory that somebody else mapped."""
    first = address + -address % mmap.PAGESIZE
    pages = (address + length - first) // mmap.PAGESIZE
    if pages > 0:
        libc = ctypes.CDLL(None, use_errno=True)
        size = pages * mmap.PAGESIZE
        libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), mmap.MADV_DONTNEED)
