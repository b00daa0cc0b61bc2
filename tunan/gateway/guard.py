"""Limits on what a connection may do before it has sent a whole request head.

uvicorn has none of its own: a client that sends its head a byte a minute, or without end,
would keep its connection, and its bytes, for ever.
"""

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Protocol
else:  # httptools where it is installed, else h11
    from uvicorn.protocols.http.auto import AutoHTTPProtocol as Protocol

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\n"
_END = b"content-length: 0\r\nconnection: close\r\n\r\n"


class Guarded(Protocol):
    """One connection of uvicorn's."""

    limit_bytes = 0
    timeout_s = 0.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._have_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        idle = before is None or before.response_complete
        # Behind a whole request comes the head of the next, even while this one is answered.
        heads = idle or not before.more_body
        super().data_received(data)
        if self.cycle is not before:
            self._have_head()
        elif heads:
            self._head_bytes += len(data)
            if self._head_bytes > self.limit_bytes:
                self._refuse(_TOO_LARGE if idle else b"")
            elif idle and self._timer is None and not self.transport.is_closing():
                self._expect_head()

    def _expect_head(self) -> None:
        self._timer = self.loop.call_later(self.timeout_s, self._refuse, _TOO_SLOW)

    def _have_head(self) -> None:
        self._head_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, line: bytes) -> None:
        """Closes, after an answer of `line` unless another one is being written."""
        self._have_head()
        if not self.transport.is_closing():
            if line:
                self.transport.write(line + _END)
            self.transport.close()


def guarded(limit_bytes: int, timeout_s: float) -> type[Guarded]:
    """For heads of at most `limit_bytes` that take at most `timeout_s`."""
    return type("Guarded", (Guarded,), {"limit_bytes": limit_bytes, "timeout_s": timeout_s})
