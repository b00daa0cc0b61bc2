"""How fast a file is read from its disk."""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MOST_BYTES = 256 << 20
MOST_SECONDS = 1.0
_CHUNK = 4 << 20


def read_rate(path: Path) -> float | None:
    """Bytes a second, past the page cache (O_DIRECT); None where the file system has no such way.

    Reads at most 256 MiB and one second of it, so that a large disk is not read for a check.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return None
    buffer = mmap.mmap(-1, _CHUNK)  # aligned to a page, as O_DIRECT asks for
    try:
        return _timed(descriptor, buffer)
    except OSError:
        return None
    finally:
        buffer.close()
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _timed(descriptor: int, buffer: mmap.mmap) -> float | None:
    done, begin = 0, time.monotonic()
    while done < MOST_BYTES and time.monotonic() - begin < MOST_SECONDS:
        count = os.readv(descriptor, [buffer])
        done += count
        if count < _CHUNK:
            break
    seconds = time.monotonic() - begin
    return done / seconds if done >= _CHUNK and seconds > 0 else None
