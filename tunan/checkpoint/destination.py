"""Where a conversion goes: written to `DEST.partial` beside it, locked, renamed at the end."""

import contextlib
import ctypes
import fcntl
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tunan.checkpoint.blocks import sync_directory
from tunan.checkpoint.manifest import MANIFEST_FILE
from tunan.errors import CheckFailedError, UsageError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2  # linux/fs.h
# Configuration, index, manifest and the file system's own bookkeeping.
_SLACK_BYTES = 64 << 20


@dataclass(frozen=True)
class Destination:
    """A directory to be made; `partial` is where it grows."""

    path: Path

    @property
    def partial(self) -> Path:
        return self.path.with_name(self.path.name + ".partial")

    def check(self, source: Path, *, overwrite: bool) -> None:
        """Raises UsageError if the destination is taken, overlaps the source or has no parent."""
        path, origin = self.path.resolve(), source.resolve()
        if path == origin or path in origin.parents or origin in path.parents:
            raise UsageError(f"{self.path}: destination and source {source} overlap")
        if not path.parent.is_dir():
            raise UsageError(f"{self.path.parent}: no such directory; create it first")
        if not self._is_taken():
            return
        if not overwrite:
            raise UsageError(f"{self.path}: exists; choose another name or give --overwrite")
        if not (self.path / MANIFEST_FILE).is_file():
            raise UsageError(
                f"{self.path}: is not a converted checkpoint (no {MANIFEST_FILE}), so "
                "--overwrite will not delete it; remove it yourself"
            )

    def check_space(self, needed: int) -> None:
        """Raises CheckFailedError unless `needed` more bytes fit on the file system."""
        free = self.free_space()
        if needed + _SLACK_BYTES > free:
            raise CheckFailedError(
                f"{self.path.parent}: {_gib(needed)} more are needed and {_gib(free)} are free; "
                "make room or choose another file system, then run the same command again"
            )

    def free_space(self) -> int:
        """Bytes an ordinary user can still write there."""
        return shutil.disk_usage(self.path.parent.resolve()).free

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Creates `partial` and keeps any other conversion out of it, across processes.

        Raises UsageError if another one is at it.
        """
        self.partial.mkdir(exist_ok=True)
        descriptor = os.open(self.partial, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._lock(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The other conversion may have published the directory in between.
            same = os.path.samestat(os.fstat(descriptor), self.partial.stat())
        except (BlockingIOError, FileNotFoundError):
            same = False
        if not same:
            raise UsageError(
                f"{self.path}: another conversion is writing it; wait for it or stop it"
            )

    def clear(self, keep: Collection[str] = ()) -> None:
        """Empties `partial` of all but the files named relative to it."""
        for path in sorted(self.partial.rglob("*"), reverse=True):
            if path.is_dir() and not path.is_symlink():
                with contextlib.suppress(OSError):  # still holds something kept
                    path.rmdir()
            elif path.relative_to(self.partial).as_posix() not in keep:
                path.unlink()

    def publish(self) -> None:
        """Makes `partial` the destination in one step; what was there before is deleted."""
        sync_directory(self.partial)
        if self._is_taken():
            _exchange(self.partial, self.path)
            sync_directory(self.path.parent)
            shutil.rmtree(self.partial)
        else:
            self.partial.rename(self.path)
        sync_directory(self.path.parent)

    def _is_taken(self) -> bool:
        if self.path.is_dir() and not self.path.is_symlink():
            return any(self.path.iterdir())
        return os.path.lexists(self.path)


def _exchange(first: Path, second: Path) -> None:
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


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB"
