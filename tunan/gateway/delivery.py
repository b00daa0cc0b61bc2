"""What reaches the client: a head once, then bytes, each as soon as it can be written."""

import json
import time

from tunan.gateway.lost import Refusal
from tunan.gateway.metrics import Metrics
from tunan.gateway.responses import Headers, Send, error_body, send_error


class Delivery:
    """One answer to one client."""

    def __init__(self, send: Send, metrics: Metrics, request_id: str) -> None:
        self._send = send
        self._metrics = metrics
        self._id: Headers = [(b"x-request-id", request_id.encode("ascii"))]
        self.request_id = request_id
        self.started = False
        self.status = 0
        self.began = time.monotonic()
        self.first_s: float | None = None  # from the request to the first byte of a body
        self._last = 0.0
        self._moving = False
        self._tail = b"\n\n"

    def moves(self) -> None:
        """The replica was lost: the pause until the next write is a stall."""
        self._moving = self.first_s is not None

    async def start(self, status: int, headers: Headers) -> None:
        """Sends the head, the first time only."""
        if self.started:
            return
        self.started = True
        self.status = status
        headers = [header for header in headers if header[0].lower() != b"x-request-id"]
        headers += self._id
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes) -> None:
        """Sends `data`; returns when the client has room for more."""
        self._tail = data[-2:] if len(data) > 1 else (self._tail + data)[-2:]
        self._time()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """The answer is whole."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def whole(self, answer: Refusal) -> None:
        """Sends an answer that is all there."""
        await self.start(answer.status, answer.headers)
        await self._send({"type": "http.response.body", "body": answer.body})

    async def error(
        self, status: int, kind: str, message: str, headers: Headers | None = None
    ) -> None:
        """The whole answer is an error."""
        self.started, self.status = True, status
        await send_error(self._send, status, kind, message, (headers or []) + self._id)

    async def error_event(self, status: int, kind: str, message: str) -> None:
        """The last event of a stream that is broken off.

        The body stays unfinished, which makes the server cut the connection, so that no
        client takes half an answer for a whole one.
        """
        event = b"data: " + json.dumps(error_body(status, kind, message)).encode() + b"\n\n"
        # Half an event may have gone out: end it, or the error would be read as part of it.
        await self.write(event if self._tail == b"\n\n" else b"\n\n" + event)

    def _time(self) -> None:
        now = time.monotonic()
        if self.first_s is None:
            self.first_s = now - self.began
            self._metrics.first_token.observe(self.first_s)
        elif self._moving:
            self._moving = False
            self._metrics.stalls.observe(now - self._last)
        else:
            self._metrics.between.observe(now - self._last)
        self._last = now
