"""One attempt of a request at one replica, which can be cut from outside while it waits."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Self, TypeVar

import aiohttp

from tunan.gateway.lost import Lost, Refusal
from tunan.gateway.replica import Answer, Replica
from tunan.gateway.responses import Headers
from tunan.gateway.upstream import LOST, ExhaustedError, Upstreams, end_to_end, reason_of

OK = 200

T = TypeVar("T")


class Leg:
    """Sends one request to `replica` and reads the answer; `Lost` says that it will not come.

    Only waiting for the replica is ever cut, never a write to the client, so that what was
    sent is always known.
    """

    def __init__(self, upstreams: Upstreams, replica: Replica, answer: Answer) -> None:
        self.replica = replica
        self.answer = answer
        self.status = 0
        self.headers: Headers = []
        self._upstreams = upstreams
        self._response: aiohttp.ClientResponse | None = None
        self._closed: asyncio.Future[None] | None = None
        self._task: asyncio.Task[object] | None = None
        self._cut: Lost | None = None
        self._loop = asyncio.get_running_loop()
        answer.cut = self.cut

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes the connection unless the answer came to its end: that frees the slot."""
        if self._closed is not None:
            self._closed.remove_done_callback(self._connection_closed)
        if self._response is not None:
            self._response.close()

    def cut(self, reason: str, planned: bool = False) -> None:
        """Ends the wait for the replica, now or when it next begins."""
        if self._cut is None:
            self._cut = Lost("moved" if planned else "cut", reason)
            if self._task is not None:
                self._task.cancel()

    async def open(self, method: str, target: str, headers: Headers, body: bytes) -> None:
        """Sends the request and takes the head of the answer."""
        request = self._upstreams.request(self.replica, method, target, headers, body)
        self._response = await self._wait(request)
        self._watch_connection(self._response)
        self.status = self._response.status
        self.headers = end_to_end(list(self._response.raw_headers))

    @property
    def is_event_stream(self) -> bool:
        """Whether events follow."""
        return self._open.content_type == "text/event-stream"

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        content = self._open.content
        while chunk := await self._wait(content.readany()):
            yield chunk

    async def whole(self) -> bytes:
        """All of the body."""
        return await self._wait(self._open.read())

    async def refusal(self) -> Refusal:
        """The whole answer, to be passed on later."""
        return Refusal(self.status, self.headers, await self.whole())

    def _watch_connection(self, response: aiohttp.ClientResponse) -> None:
        """A body whose framing is broken would never end: aiohttp closes, but tells no reader."""
        connection = response.connection
        protocol = connection.protocol if connection is not None else None
        if protocol is not None and (closed := protocol.closed) is not None:
            closed.remove_done_callback(_look)
            closed.add_done_callback(_look)
            closed.add_done_callback(self._connection_closed)
            self._closed = closed

    def _connection_closed(self, _: object) -> None:
        content = self._open.content
        if not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError("the connection broke off"))

    @property
    def _open(self) -> aiohttp.ClientResponse:
        if self._response is None:
            raise RuntimeError("the leg is not open")
        return self._response

    async def _wait(self, awaited: Awaitable[T]) -> T:
        self._task = asyncio.current_task()
        self.answer.waiting_since = self._loop.time()
        try:
            if self._cut is not None:
                if asyncio.iscoroutine(awaited):
                    awaited.close()
                raise self._cut
            result = await awaited
            self.answer.heard(self._loop.time(), body=self.status == OK)
            return result
        except asyncio.CancelledError:
            if self._cut is None or (self._task is not None and self._task.uncancel()):
                raise  # the client has gone
            raise self._cut from None
        except ExhaustedError as error:
            raise Lost("exhausted", str(error)) from None
        except LOST as error:
            kind = "refused" if isinstance(error, aiohttp.ClientConnectorError) else "reset"
            raise Lost(kind, reason_of(error)) from None
        finally:
            self.answer.waiting_since = None
            self._task = None


def _look(closed: asyncio.Future[None]) -> None:
    """What ended a connection has been looked at, or asyncio would complain that nobody has."""
    if not closed.cancelled():
        closed.exception()
