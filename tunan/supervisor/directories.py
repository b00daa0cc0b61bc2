"""Where Tunan keeps what outlives a run: caches and logs, by the XDG rules."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# A Unix socket's path may have 107 bytes, and vLLM's own names take 37 of them.
LONGEST_BASE = 48
LONG_TMPDIR_BASE = Path("/tmp")  # noqa: S108  # mkdtemp makes a private directory in it
PREFIX = "tunan-"
LOCK = "lock"


@dataclass(frozen=True)
class Directories:
    """`cache` may be deleted at any time; `state` holds the logs of services."""

    cache: Path
    state: Path

    @classmethod
    def of_user(cls) -> "Directories":
        """XDG_CACHE_HOME and XDG_STATE_HOME, or their defaults under the home directory."""
        return cls(
            cache=_base("XDG_CACHE_HOME", ".cache") / "tunan",
            state=_base("XDG_STATE_HOME", ".local/state") / "tunan",
        )


def _base(variable: str, default: str) -> Path:
    value = os.environ.get(variable, "")
    # The XDG rules say that a relative path is to be ignored.
    return Path(value) if Path(value).is_absolute() else Path.home() / default


@contextlib.contextmanager
def runtime_directory() -> Iterator[Path]:
    """A private directory for one run's sockets and temporary files, with a short path.

    It is gone when the block is left. A run that was killed leaves its own behind, so those of
    this user whose lock nobody holds are removed first.
    """
    base = Path(tempfile.gettempdir())
    if len(os.fsencode(base)) > LONGEST_BASE:
        base = LONG_TMPDIR_BASE
    _remove_abandoned(base)
    directory, lock = _locked_directory(base)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def running_services(name: str) -> list[Path]:
    """The file `name` of each runtime directory of this user that has one, oldest first."""
    found: dict[Path, float] = {}
    for base in {Path(tempfile.gettempdir()), LONG_TMPDIR_BASE}:
        for file in base.glob(f"{PREFIX}*/{name}"):
            with contextlib.suppress(OSError):  # a service that ends meanwhile
                if not file.parent.is_symlink() and file.parent.stat().st_uid == os.getuid():
                    found[file] = file.lstat().st_mtime
    return sorted(found, key=lambda file: found[file])


def _locked_directory(base: Path) -> tuple[Path, int]:
    """A new directory and the descriptor that keeps its lock, which the kernel lets go with us."""
    while True:
        directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        lock = os.open(directory / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        # Another start may have taken it for abandoned before it was locked.
        if _lock(lock) and os.fstat(lock).st_nlink:
            return directory, lock
        os.close(lock)


def _remove_abandoned(base: Path) -> None:
    for lock_file in base.glob(f"{PREFIX}*/{LOCK}"):
        directory = lock_file.parent
        with contextlib.suppress(OSError):
            if directory.is_symlink() or directory.stat().st_uid != os.getuid():
                continue
            lock = os.open(lock_file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if _lock(lock):
                    shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(lock)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
