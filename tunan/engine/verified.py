"""Remembers which blocks had the right sha256, so that a restart need not hash them again.

A file that has kept its size, inode, modification and change time since has not been
written to: no program can set the change time. What this cannot notice is a medium that
decays by itself; `verify: full` and `tunan verify` hash everything every time.

The record is a cache: it may be deleted, and a directory that cannot be written costs
only the hashing.
"""

import contextlib
import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from tunan.engine.layout import PlannedBlock
from tunan.supervisor.directories import Directories

Identity = list[str | int]


@dataclass
class VerifiedBlocks:
    """The record of one checkpoint directory for one rank."""

    path: Path
    _known: dict[str, Identity] = field(default_factory=dict)
    _hashing: dict[str, Identity] = field(default_factory=dict)
    _changed: bool = False

    @classmethod
    def of(cls, directory: Path, degree: int, rank: int) -> "VerifiedBlocks":
        """Reads the record; one that is missing or not readable is empty."""
        key = hashlib.sha256(f"{directory.resolve()} {degree} {rank}".encode()).hexdigest()
        path = Directories.of_user().cache / "verified" / f"{key[:32]}.json"
        return cls(path, _read(path))

    def holds(self, block: PlannedBlock, opened: os.stat_result | None = None) -> bool:
        """Whether the block is unchanged since it had the sha256 that the manifest lists.

        `opened`: the status of the file that is open already, which need not be the one that lies
        at the path by now.
        """
        identity = _identity(block, opened or block.path.stat())
        if self._known.get(str(block.path)) == identity:
            return True
        # Taken before the content is read: a write in between then shows.
        self._hashing[str(block.path)] = identity
        return False

    def add(self, block: PlannedBlock) -> None:
        """The block's content has the right sha256; `holds` was asked before it was read."""
        self._known[str(block.path)] = self._hashing.pop(str(block.path))
        self._changed = True

    def save(self) -> None:
        """Adds to the record, which is written whole or not at all."""
        if not self._changed:
            return
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            written = self.path.with_suffix(f".{os.getpid()}")
            written.write_text(json.dumps(_read(self.path) | self._known))
            written.replace(self.path)


def _read(path: Path) -> dict[str, Identity]:
    try:
        known = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _identity(block: PlannedBlock, status: os.stat_result) -> Identity:
    return [
        block.sha256,
        status.st_size,
        status.st_dev,
        status.st_ino,
        status.st_mtime_ns,
        status.st_ctime_ns,
    ]
