"""A fake engine: a real HTTP server on a Unix socket that answers as told.

The real engine is behind the same front door in tests/supervisor/test_service.py; this one
can do what a healthy engine will not: die in the middle, answer slowly, echo headers.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import ClientSession, web

from tunan.config.deployment import Gateway
from tunan.gateway.app import front_door as front_door_of
from tunan.gateway.pool import Pool
from tunan.gateway.replica import Replica, Stage, UnixAddress
from tunan.gateway.server import address_of, bind, serving


@dataclass
class FakeEngine:
    """What the engine saw."""

    requests: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers by path."""
        if request.path == "/health":  # the gateway asks of itself
            return web.Response()
        body = await request.read()
        headers = {key.lower(): value for key, value in request.headers.items()}
        self.requests.append((request.method, request.raw_path, headers, body))
        if request.path == "/stream":
            return await self._stream(request)
        if request.path == "/dies":
            return await self._die(request, b'data: {"a": 1}\n\n')
        if request.path == "/dies-within-an-event":
            return await self._die(request, b'data: {"a"')
        if request.path == "/dies-plain":
            return await self._die(request, b"half", "text/plain")
        if request.path == "/refuses":
            return web.json_response({"error": {"message": "no"}}, status=418, reason="Teapot")
        if request.path == "/dies-at-once":
            assert request.transport is not None
            request.transport.close()
        return web.Response(body=body, headers={"X-Engine": "yes", "Keep-Alive": "5"})

    async def _stream(self, request: web.BaseRequest) -> web.StreamResponse:
        response = await _start(request, "text/event-stream")
        try:
            await response.write(b"data: 1\n\n")
            await self.go_on.wait()
            await response.write("data: 图\n\ndata: [DONE]\n\n".encode())
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return response

    async def _die(
        self, request: web.BaseRequest, start: bytes, kind: str = "text/event-stream"
    ) -> web.StreamResponse:
        response = await _start(request, kind)
        await response.write(start)
        await asyncio.sleep(0.05)
        assert request.transport is not None
        request.transport.abort()
        return response


async def _start(request: web.BaseRequest, kind: str) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": kind})
    await response.prepare(request)
    return response


@dataclass
class Door:
    """A front door before a fake engine, and a client at it."""

    engine: FakeEngine
    replica: Replica
    url: str
    client: ClientSession


@contextlib.asynccontextmanager
async def front_door(
    folder: Path, max_body_bytes: int = 1 << 20, keys: Path | None = None
) -> AsyncIterator[Door]:
    """Serves a ready replica on a free port."""
    engine = FakeEngine()
    socket = folder / "engine.sock"
    replica = Replica(UnixAddress(socket))
    pool = Pool([replica])
    # handler_cancellation: as vLLM, which ends a request whose client has gone.
    runner = web.ServerRunner(web.Server(engine.handle, handler_cancellation=True))
    await runner.setup()
    await web.UnixSite(runner, str(socket)).start()
    replica.move(Stage.READY)
    listener = bind("127.0.0.1", 0)
    gateway = Gateway(max_body_mib=max_body_bytes / (1 << 20), api_keys_file=keys)
    async with (
        front_door_of(pool, gateway) as app,
        serving(app, listener),
        ClientSession() as client,
    ):
        yield Door(engine, replica, address_of(listener), client)
    await runner.cleanup()
    listener.close()
