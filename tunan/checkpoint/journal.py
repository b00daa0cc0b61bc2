"""The journal of an unfinished conversion: which blocks are whole and on the disk.

One JSON line says what is being written (`plan`, a digest of everything that decides the
bytes), then one line a finished block. A line torn by a crash is ignored.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tunan import __version__
from tunan.checkpoint.blocks import Written, sync_directory
from tunan.checkpoint.manifest import Block
from tunan.checkpoint.plan import PlannedBlock
from tunan.checkpoint.source import Source

JOURNAL_FILE = "conversion.journal"


def plan_digest(source: Source, blocks: Iterable[PlannedBlock]) -> str:
    """sha256 over the source's identity (fingerprint, modification times), the plan and the
    version of Tunan, as another one may write other bytes."""
    digest = hashlib.sha256(f"{__version__}\n{source.fingerprint()}\n".encode())
    for path in sorted({info.file for info in source.tensors.values()}):
        digest.update(os.fsencode(path.name) + f":{path.stat().st_mtime_ns}\n".encode())
    for block in blocks:
        digest.update(f"{block.file}:{block.entries!r}\n".encode())
    return digest.hexdigest()


class Journal:
    """Appends finished blocks; every line is on the disk before `record` returns.

    It takes up the one in `directory` if the conversion is `continued`, else begins anew.
    """

    def __init__(self, directory: Path, plan: str, *, continued: bool) -> None:
        path = directory / JOURNAL_FILE
        self._file = path.open("a" if continued else "w", encoding="utf-8")
        if continued:
            self._file.write("\n")  # ends a line that a crash has torn
        else:
            self._append({"plan": plan})
            sync_directory(directory)

    def record(self, written: Written) -> None:
        """Notes a block as finished."""
        self._append(
            {"block": written.block.model_dump(mode="json"), "errors": dict(written.errors)}
        )

    def close(self) -> None:
        """Closes the file; it stays where it is."""
        self._file.close()

    def _append(self, content: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(content) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def finished_blocks(directory: Path, plan: str) -> dict[str, Written] | None:
    """Blocks of `directory` that an earlier run of the same plan finished, by file.

    None if there is no journal or it is of another plan.
    """
    try:
        lines = (directory / JOURNAL_FILE).read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError):
        return None
    if not lines or _parse(lines[0]) != {"plan": plan}:
        return None
    found = (_written(line) for line in lines[1:])
    return {w.block.file: w for w in found if w and _is_whole(directory, w.block)}


def _is_whole(directory: Path, block: Block) -> bool:
    path = directory / block.file
    return path.is_file() and path.stat().st_size == block.bytes


def _written(line: str) -> Written | None:
    content = _parse(line)
    if not isinstance(content, dict):
        return None
    try:
        return Written(Block.model_validate(content.get("block")), content.get("errors", {}))
    except ValidationError:
        return None


def _parse(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
