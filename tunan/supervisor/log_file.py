"""The engine's log: one file a service under the state directory, the last run's kept beside it."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from tunan.errors import OutsideError

TAIL_POLL_S = 0.2


def fresh_log(state: Path, name: str, port: int) -> Path:
    """An empty `engine.log` for the service `name` on `port`. Raises `OutsideError`."""
    folder = state / f"{name}-{port}"
    log = folder / "engine.log"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if log.exists():
            log.replace(folder / "engine.log.1")
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
    if data:
        sys.stderr.buffer.write(data)
        sys.stderr.buffer.flush()
