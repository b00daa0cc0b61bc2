"""What clients can make uvicorn log, as often as they like: counted, and told now and then."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator

from tunan.notices import warn

PAUSE_S = 60.0
# What uvicorn logs as an error when an answer is cut, which the proxy does on purpose.
CUT = "ASGI callable returned without completing response."
MALFORMED = "Invalid HTTP request received."
# Of a request to speak something else on the connection, which is answered as if it were none.
_UPGRADES = ("Unsupported upgrade request.", "No supported WebSocket library detected.")


class _Noise:
    """Tells of the first malformed request at once, of those that follow after `pause_s`."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    def keeps(self, record: logging.LogRecord) -> bool:
        """Whether a line is logged as it is."""
        message = record.getMessage()
        if message == MALFORMED:
            self._count += 1
            if self._timer is None:
                self._tell()
        return message not in (CUT, MALFORMED) and not message.startswith(_UPGRADES)

    def end(self) -> None:
        """Tells of those that were not told yet."""
        if self._timer is not None:
            self._timer.cancel()
        self._say()

    def _tell(self) -> None:
        self._timer = None
        if self._count:
            self._say()
            self._timer = asyncio.get_running_loop().call_later(self._pause_s, self._tell)

    def _say(self) -> None:
        if self._count:
            several = (
                f"{self._count} requests that were" if self._count > 1 else "a request that was"
            )
            with contextlib.suppress(OSError):  # a service goes on when nobody reads what it says
                warn(f"refused {several} not HTTP, with status 400")
        self._count = 0


@contextlib.contextmanager
def quiet(pause_s: float = PAUSE_S) -> Iterator[None]:
    """While the block runs, on an asyncio loop, clients cannot fill the log."""
    noise, logger = _Noise(pause_s), logging.getLogger("uvicorn.error")
    logger.addFilter(noise.keeps)
    try:
        yield
    finally:
        logger.removeFilter(noise.keeps)
        noise.end()
