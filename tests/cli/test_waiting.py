"""`tunan chat --wait`: against a small real HTTP server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from tunan.cli.waiting import wait_until_ready
from tunan.errors import OutsideError


@asynccontextmanager
async def server(
    *states: dict[str, object], asked: asyncio.Event | None = None
) -> AsyncIterator[str]:
    """Answers `/ready` with each state in turn, the last one for ever; sets `asked` when it has."""
    left = list(states)

    async def ready(_: web.Request) -> web.Response:
        if asked is not None:
            asked.set()
        return web.json_response(left.pop(0) if len(left) > 1 else left[0])

    app = web.Application()
    app.router.add_get("/ready", ready)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def test_waiting_shows_each_stage_once_and_ends_when_ready(
    capsys: pytest.CaptureFixture[str],
) -> None:
    loading = {"ready": False, "stage": "loading", "detail": "loading 1/2 blocks"}
    states = (loading, loading, {"ready": True, "stage": "ready"})
    async with server(*states) as url, aiohttp.ClientSession() as session:
        await wait_until_ready(session, url, 120)
    assert capsys.readouterr().err == "loading 1/2 blocks\n"


async def test_a_failed_engine_ends_the_wait_with_its_error() -> None:
    failed = {"ready": False, "stage": "failed", "detail": "failed: out of memory"}
    async with server(failed) as url, aiohttp.ClientSession() as session:
        with pytest.raises(OutsideError, match="out of memory"):
            await wait_until_ready(session, url, 120)


async def test_waiting_gives_up_after_the_seconds_asked_for() -> None:
    async with (
        server({"ready": False, "stage": "starting", "detail": "starting"}) as url,
        aiohttp.ClientSession() as session,
    ):
        with pytest.raises(OutsideError, match="not ready after 3 s: starting"):
            await wait_until_ready(session, url, 3)


async def test_a_server_that_goes_away_while_waiting_is_noticed() -> None:
    starting, asked = {"ready": False, "stage": "starting"}, asyncio.Event()
    async with aiohttp.ClientSession() as session:
        async with server(starting, asked=asked) as url:
            waiting = asyncio.create_task(wait_until_ready(session, url, 120))
            await asked.wait()
        with pytest.raises(OutsideError, match="stopped"):
            await waiting


async def test_a_server_that_was_never_there_is_a_connection_error() -> None:
    async with aiohttp.ClientSession() as session:
        async with server({"ready": True}) as url:
            pass
        with pytest.raises(aiohttp.ClientConnectionError):
            await wait_until_ready(session, url, 0)


async def test_another_kind_of_server_is_told_apart() -> None:
    async with server({"status": "ok"}) as url, aiohttp.ClientSession() as session:
        with pytest.raises(OutsideError, match="has no /ready"):
            await wait_until_ready(session, url, 5)
