"""Where a conversion goes: written to `DEST.partial` beside it, locked, renamed at the end."""

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tunan.checkpoint.blocks import sync_directory
from tunan.checkpoint.exchange import exchange
from tunan.checkpoint.journal import JOURNAL_FILE
from tunan.checkpoint.manifest import MANIFEST_FILE
from tunan.errors import CheckFailedError, OutsideError, UsageError

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
        """Raises UsageError if the destination is taken, overlaps the source or has no parent,
        OutsideError if nothing can be made there."""
        if self.path.name in ("", ".."):
            raise UsageError(f"{self.path}: give the directory to make by a name of its own")
        origin = _real(source)
        for place in map(_real, (self.path, self.partial)):
            if place == origin or place in origin.parents or origin in place.parents:
                raise UsageError(
                    f"{self.path}: destination (with {self.partial.name}) "
                    f"and source {source} overlap"
                )
        parent = self.path.parent
        if not parent.is_dir():
            raise UsageError(f"{parent}: no such directory; create it first")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise OutsideError(f"{parent}: not writable; choose another directory")
        self._check_place(overwrite)
        self._check_leftovers()

    def check_space(self, needed: int) -> None:
        """Raises CheckFailedError unless `needed` more bytes fit on the file system."""
        free, needed = self.free_space(), needed + _SLACK_BYTES
        if needed > free:
            raise CheckFailedError(
                f"{self.path.parent}: {_gib(needed)} more are needed and {_gib(free)} are free; "
                "make room or choose another file system, then run the same command again"
            )

    def free_space(self) -> int:
        """Bytes an ordinary user can still write there."""
        return shutil.disk_usage(_real(self.path).parent).free

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Creates `partial` and keeps any other conversion out of it, across processes.

        Raises UsageError if another one is at it, OutsideError if it cannot be created.
        """
        self._make_partial()
        descriptor = os.open(self.partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            self._lock(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _make_partial(self) -> None:
        """A full disk is left to who knows what else is to be said of it."""
        try:
            self.partial.mkdir(exist_ok=True)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise OutsideError(
                f"{self.partial}: cannot be created ({error.strerror}); choose another directory"
            ) from error

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

    def publish(self, *, overwrite: bool) -> None:
        """Makes `partial` the destination in one step; with `overwrite` what was there before
        is deleted.

        The journal goes last, so that a crash just before costs no finished block. Raises
        UsageError if the destination was taken by somebody else meanwhile.
        """
        sync_directory(self.partial)
        if self._is_taken():
            self._check_place(overwrite)
            self._replace()
        else:
            self._rename()
        sync_directory(self.path.parent)
        (self.path / JOURNAL_FILE).unlink(missing_ok=True)

    def _rename(self) -> None:
        try:
            self.partial.rename(self.path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise UsageError(f"{self.path}: was made meanwhile; move it away") from error

    def _replace(self) -> None:
        """Swaps the two and deletes the old one, which no other conversion may take for its own
        `partial` while it goes."""
        old = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(old, fcntl.LOCK_EX)
            exchange(self.partial, self.path)
            (self.partial / JOURNAL_FILE).touch()  # ours, should the deletion be cut short
            sync_directory(self.path.parent)
            shutil.rmtree(self.partial)
        finally:
            os.close(old)

    def _check_place(self, overwrite: bool) -> None:
        path = self.path
        if os.path.ismount(path):
            raise UsageError(f"{path}: is a mount point; give a directory inside it")
        if not self._is_taken():
            return
        if not overwrite:
            raise UsageError(f"{path}: exists; choose another name or give --overwrite")
        if path.is_symlink():
            raise UsageError(f"{path}: is a symbolic link; give what it leads to, {_real(path)}")
        if not (path / MANIFEST_FILE).is_file():
            raise UsageError(
                f"{path}: is not a converted checkpoint (no {MANIFEST_FILE}), so "
                "--overwrite will not delete it; remove it yourself"
            )

    def _check_leftovers(self) -> None:
        """A directory that only happens to be called so is not ours to empty."""
        partial = self.partial
        if not os.path.lexists(partial):
            return
        ours = partial.is_dir() and not partial.is_symlink()
        if ours and any(partial.iterdir()):
            ours = (partial / JOURNAL_FILE).is_file()
        if not ours:
            raise UsageError(
                f"{partial}: is in the way and not what a conversion has left; "
                "move it or choose another destination"
            )

    def _is_taken(self) -> bool:
        if self.path.is_dir() and not self.path.is_symlink():
            return any(self.path.iterdir())
        return os.path.lexists(self.path)


def _real(path: Path) -> Path:
    """The absolute path without symbolic links; a loop of them, which `Path.resolve` raises
    RuntimeError for, stays as it is."""
    return Path(os.path.realpath(path))


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB"
