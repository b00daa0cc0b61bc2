"""The engine's log: one file a replica under the state directory, the last runs' kept beside it."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from tunan.errors import OutsideError

TAIL_POLL_S = 0.2
KEPT = 5  # as many as there are starts before the breaker opens


def log_of(state: Path, service: str, port: int, replica: int | None = None) -> Path:
    """Where the engine of `service` on `port` writes: `engine.log`, of several `engine-0.log`..."""
    name = "engine.log" if replica is None else f"engine-{replica}.log"
    return state / f"{service}-{port}" / name


def start_afresh(log: Path) -> Path:
    """`log` emptied, what was in it kept as `.1`, that as `.2`... Raises `OutsideError`."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        kept = [log, *(log.with_name(f"{log.name}.{number}") for number in range(1, KEPT + 1))]
        for older, newer in reversed(list(zip(kept[1:], kept[:-1], strict=True))):
            if newer.exists():
                newer.replace(older)
        log.touch(mode=0o600)
    except OSError as error:
        raise OutsideError(
            f"{log}: cannot write the log: {error.strerror}; set XDG_STATE_HOME"
        ) from None
    return log


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
                _copy(file.read())
                await asyncio.sleep(TAIL_POLL_S)
        finally:
            _copy(file.read())


def _copy(data: bytes) -> None:
    # As `Report`: a service goes on when nobody reads what it says any more.
    with contextlib.suppress(OSError):
        if data:
            sys.stderr.buffer.write(data)
            sys.stderr.buffer.flush()
