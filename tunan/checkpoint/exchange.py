"""Swaps two directories, in one step where the file system can."""

import ctypes
import os
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2  # linux/fs.h


def exchange(first: Path, second: Path) -> None:
    """Swaps two directories atomically; where the file system cannot, in two renames that are
    undone if the second fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = (os.fsencode(first), os.fsencode(second))
    if hasattr(libc, "renameat2"):
        flags = ctypes.c_uint(_RENAME_EXCHANGE)
        if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], flags) == 0:
            return
    aside = second.with_name(second.name + ".replaced")
    second.rename(aside)
    try:
        first.rename(second)
    except OSError:
        aside.rename(second)
        raise
    aside.rename(first)
