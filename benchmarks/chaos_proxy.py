"""A TCP proxy before a replica that can be told to misbehave as networks and broken engines do."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import StrEnum

_PIECE = 1 << 16
_BROKEN = b'{"error": {"message": "broken", "type": "InternalServerError", "code": 500}}'
_ANSWER_500 = (
    b"HTTP/1.1 500 Internal Server Error\r\ncontent-type: application/json\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(_BROKEN)
) + _BROKEN
_GARBAGE = b"\x00\xff<html>\n\n\r\nffff\r\n"


class Mode(StrEnum):
    """What is done with bytes."""

    PASS = "pass"  # no password
    BLACK_HOLE = "black_hole"
    HALF_EVENT = "half_event"
    GARBAGE = "garbage"
    ANSWER_500 = "answer_500"


@dataclass
class FaultyProxy:
    """`url` leads to 127.0.0.1:`port` through it. `mode` holds for old and new connections."""

    port: int
    url: str = ""
    mode: Mode = Mode.PASS
    _open: set[asyncio.StreamWriter] = field(default_factory=set)
    _serving: set["asyncio.Task[None]"] = field(default_factory=set)
    _well: asyncio.Event = field(default_factory=asyncio.Event)

    def cut(self) -> None:
        """Resets every connection; new ones pass."""
        for writer in list(self._open):
            writer.transport.abort()

    def become(self, mode: Mode) -> None:
        """What is done from now on. A mode that answers for the engine breaks off what runs."""
        self.mode = mode
        if mode is Mode.PASS:
            self._well.set()
            return
        self._well.clear()
        if mode is Mode.ANSWER_500:
            self.cut()

    async def end(self) -> None:
        """Ends every connection, and returns when none is served any more."""
        self.become(Mode.PASS)
        self.cut()
        await asyncio.gather(*self._serving)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of the gateway."""
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._serve(reader, writer)
        finally:
            self._serving.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.mode is Mode.ANSWER_500:
            with contextlib.suppress(OSError):
                await reader.read(_PIECE)
                writer.write(_ANSWER_500)
                await writer.drain()
            writer.close()
            return
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, forth}
        self._open |= ends
        try:
            await asyncio.gather(self._up(reader, forth), self._down(back, writer))
        except OSError:
            pass
        finally:
            self._open -= ends
            for end in ends:
                end.transport.abort()

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_PIECE):
            await self._let_through()
            writer.write(data)
            await writer.drain()
        writer.close()

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_PIECE):
            await self._let_through()
            broken = self._broken(data)
            writer.write(data if broken is None else broken)
            await writer.drain()
            if broken is not None:
                await asyncio.sleep(0.02)  # for it to be read before the reset
                writer.transport.abort()
                return
        writer.close()

    async def _let_through(self) -> None:
        while self.mode is Mode.BLACK_HOLE:
            await self._well.wait()

    def _broken(self, data: bytes) -> bytes | None:
        """What comes instead of `data` before the connection breaks; None: nothing is wrong."""
        start = data.find(b"data: ")
        if start < 0 or self.mode is Mode.PASS:
            return None
        if self.mode is Mode.HALF_EVENT:
            return data[: start + max(8, (len(data) - start) // 2)]
        return _GARBAGE


@contextlib.asynccontextmanager
async def faulty_proxy(port: int) -> AsyncIterator[FaultyProxy]:
    """A running one before 127.0.0.1:`port`."""
    proxy = FaultyProxy(port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    host, bound = server.sockets[0].getsockname()
    proxy.url = f"http://{host}:{bound}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.end()
