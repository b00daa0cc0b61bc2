"""Where Tunan keeps what outlives a run: caches and logs, by the XDG rules."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

# A Unix socket's path may have 107 bytes, and vLLM's own names take 37 of them.
LONGEST_BASE = 48


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


def runtime_directory() -> Path:
    """A new private directory for one run's sockets and temporary files, with a short path."""
    base = Path(tempfile.gettempdir())
    if len(os.fsencode(base)) > LONGEST_BASE:
        base = Path("/tmp")  # noqa: S108  # mkdtemp makes a private directory in it
    return Path(tempfile.mkdtemp(prefix="tunan-", dir=base))
