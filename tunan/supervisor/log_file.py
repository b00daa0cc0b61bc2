"""The engine's log: one file a replica under the state directory, the last runs' kept beside it.

A log that gets too large in one run is handled as at a start: its text is kept as `.1`, and it is
begun anew. The engine appends to the file it has, so it has not to be told.
"""

import asyncio
import contextlib
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

from tunan.errors import OutsideError

USUAL_HOST = "127.0.0.1"  # a service there has a folder without its address
LARGEST = 64 << 20  # bytes
SIZE_POLL_S = 5.0
TAIL_POLL_S = 0.2
KEPT = 5  # as many as there are starts before the breaker opens


def log_of(state: Path, service: str, host: str, port: int, replica: int | None = None) -> Path:
    """Where the engine of `service` on `port` writes: `engine.log`, of several `engine-0.log`...

    The same name and port may be taken on each address of a machine.
    """
    name = "engine.log" if replica is None else f"engine-{replica}.log"
    there = "" if host == USUAL_HOST else f"-{re.sub(r'[^A-Za-z0-9.]', '_', host)}"
    return state / f"{service}-{port}{there}" / name


def start_afresh(log: Path) -> Path:
    """`log` emptied, what was in it kept as `.1`, that as `.2`... Raises `OutsideError`."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _make_room(log)
        if log.exists():
            log.replace(_kept(log, 1))
        log.touch(mode=0o600)
    except OSError as error:
        raise OutsideError(
            f"{log}: cannot write the log: {error.strerror}; set XDG_STATE_HOME"
        ) from None
    return log


def _kept(log: Path, number: int) -> Path:
    return log.with_name(f"{log.name}.{number}")


def _make_room(log: Path) -> None:
    """Each of those that are kept gets the next number, so that `.1` is free."""
    for number in range(KEPT, 1, -1):
        if _kept(log, number - 1).exists():
            _kept(log, number - 1).replace(_kept(log, number))


@contextlib.asynccontextmanager
async def kept_small(log: Path) -> AsyncIterator[None]:
    """Begins `log` anew whenever it is too large, while the block runs."""
    task = asyncio.create_task(_keep_small(log))
    try:
        yield
    finally:
        task.cancel()


async def _keep_small(log: Path) -> None:
    while True:
        await asyncio.sleep(SIZE_POLL_S)
        await asyncio.to_thread(_begin_anew_if_large, log)


def _begin_anew_if_large(log: Path) -> None:
    # A disk that is full, or a log that somebody has removed: nothing that can be done here.
    with contextlib.suppress(OSError):
        if log.stat().st_size > LARGEST:
            begin_anew(log)


def begin_anew(log: Path) -> None:
    """`log` emptied while it is written to, what was in it kept as `.1`. Raises `OSError`.

    The file stays the same one. What comes between the last look and the cut is lost: that is
    the time of two system calls.
    """
    _make_room(log)
    with log.open("r+b") as file, _kept(log, 1).open("wb") as kept:
        os.fchmod(kept.fileno(), 0o600)
        shutil.copyfileobj(file, kept)
        while rest := file.read():
            kept.write(rest)
        file.truncate(0)


def read_new(log: BinaryIO) -> bytes:
    """What was written to an open log since it was last read, from its start if it was begun anew.

    Raises `OSError`.
    """
    if log.tell() > os.fstat(log.fileno()).st_size:
        log.seek(0)
    return log.read()


@contextlib.asynccontextmanager
async def tail_to_stderr(log: Path) -> AsyncIterator[None]:
    """Copies what is written to `log` to stderr while the block runs."""
    task = asyncio.create_task(_tail(log))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _tail(log: Path) -> None:
    with log.open("rb") as file:
        try:
            while True:
                _copy(read_new(file))
                await asyncio.sleep(TAIL_POLL_S)
        finally:
            _copy(read_new(file))


def _copy(data: bytes) -> None:
    # As `Report`: a service goes on when nobody reads what it says any more.
    with contextlib.suppress(OSError):
        if data:
            sys.stderr.buffer.write(data)
            sys.stderr.buffer.flush()
