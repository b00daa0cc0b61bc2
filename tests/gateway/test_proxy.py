"""Handing requests on and answers back."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from tests.gateway.engines import front_door
from tunan.gateway.replica import Stage


async def test_method_path_query_and_body_arrive_as_they_were(tmp_path: Path) -> None:
    async with front_door(tmp_path) as door:
        body = bytes(range(256)) * 100
        path = "/v1/a%2Fb/%E5%9B%BE?x=1&y=%20z"
        url = URL(door.url + path, encoded=True)
        async with door.client.put(url, data=body, headers={"X-Mine": "1"}) as answer:
            assert await answer.read() == body
            assert answer.headers["x-engine"] == "yes"
        method, raw_path, headers, seen = door.engine.requests[0]
        assert (method, raw_path, seen) == ("PUT", path, body)
        assert headers["x-mine"] == "1"


async def test_a_header_in_utf_8_arrives_as_it_was(tmp_path: Path) -> None:
    async with front_door(tmp_path) as door:
        async with door.client.get(f"{door.url}/", headers={"X-Mine": "图南"}) as answer:
            assert answer.status == 200
        assert door.engine.requests[0][2]["x-mine"] == "图南"


async def test_headers_of_one_connection_are_not_handed_on(tmp_path: Path) -> None:
    async with front_door(tmp_path) as door:
        given = {"Connection": "x-private", "X-Private": "1", "TE": "trailers", "Upgrade": "h2c"}
        async with door.client.get(f"{door.url}/", headers=given) as answer:
            assert "keep-alive" not in answer.headers
        seen = door.engine.requests[0][2]
        assert not {"x-private", "te", "upgrade"} & set(seen)


async def test_errors_pass_with_status_and_body(tmp_path: Path) -> None:
    async with front_door(tmp_path) as door, door.client.get(f"{door.url}/refuses") as answer:
        assert answer.status == 418
        assert await answer.json() == {"error": {"message": "no"}}


async def test_an_event_is_here_before_the_next_is_made(tmp_path: Path) -> None:
    async with front_door(tmp_path) as door, door.client.get(f"{door.url}/stream") as answer:
        assert await answer.content.readany() == b"data: 1\n\n"
        assert door.replica.in_flight == 1
        door.engine.go_on.set()
        assert await answer.read() == "data: 图\n\ndata: [DONE]\n\n".encode()
        await asyncio.wait_for(door.replica.empty(), 60)


async def test_a_client_that_leaves_ends_the_request_at_the_engine(tmp_path: Path) -> None:
    async with front_door(tmp_path) as door:
        async with door.client.get(f"{door.url}/stream") as answer:
            await answer.content.readany()
            answer.close()
        await asyncio.wait_for(door.engine.cancelled.wait(), 60)
        await asyncio.wait_for(door.replica.empty(), 60)


@pytest.mark.parametrize("path", ["/dies", "/dies-within-an-event"])
async def test_a_broken_stream_ends_with_an_error_event_and_a_cut(
    tmp_path: Path, path: str
) -> None:
    async with front_door(tmp_path) as door, door.client.get(door.url + path) as answer:
        received, complete = await _read(answer)
        assert not complete
        events = received.split(b"\n\n")
        assert b'"engine_lost"' in events[-2]
        assert events[-1] == b""
        assert b"[DONE]" not in received


async def test_a_stream_cut_by_a_shutdown_is_told_so(tmp_path: Path) -> None:
    async with front_door(tmp_path) as door, door.client.get(door.url + "/dies") as answer:
        door.replica.move(Stage.DRAINING)
        received, complete = await _read(answer)
        assert not complete
        assert b'"server_shutting_down"' in received
        assert b"shutting down" in received
        assert b"died" not in received


async def test_a_broken_plain_answer_is_cut(tmp_path: Path) -> None:
    async with front_door(tmp_path) as door, door.client.get(f"{door.url}/dies-plain") as answer:
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()


async def test_a_cut_is_not_logged_as_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with front_door(tmp_path) as door, door.client.get(f"{door.url}/dies-plain") as answer:
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()
    assert [record for record in caplog.records if record.name == "uvicorn.error"] == []


async def test_an_engine_that_hangs_up_unanswered_is_502(tmp_path: Path) -> None:
    async with (
        front_door(tmp_path) as door,
        door.client.post(f"{door.url}/dies-at-once", data=b"x") as answer,
    ):
        assert answer.status == 502
        assert (await answer.json())["error"]["type"] == "engine_lost"


async def test_an_absent_engine_is_502(tmp_path: Path) -> None:
    async with front_door(tmp_path) as door:
        (tmp_path / "engine.sock").unlink()
        async with door.client.get(f"{door.url}/v1/models") as answer:
            assert answer.status == 502


async def test_a_body_that_says_it_is_too_large_is_refused(tmp_path: Path) -> None:
    async with front_door(tmp_path, max_body_bytes=10) as door:
        async with door.client.post(f"{door.url}/", data=b"x" * 11) as answer:
            assert answer.status == 413
        assert door.engine.requests == []


async def test_a_body_that_grows_too_large_is_refused(tmp_path: Path) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"xxxx"

    async with front_door(tmp_path, max_body_bytes=10) as door:
        async with door.client.post(f"{door.url}/", data=chunks()) as answer:
            assert answer.status == 413
        assert door.engine.requests == []


async def test_a_client_that_leaves_while_sending_costs_nothing(tmp_path: Path) -> None:
    async with front_door(tmp_path) as door:
        host, port = door.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        async with door.client.get(f"{door.url}/after") as answer:
            assert answer.status == 200
        assert [request[1] for request in door.engine.requests] == ["/after"]


async def _read(answer: aiohttp.ClientResponse) -> tuple[bytes, bool]:
    """What came, and whether it came to its proper end."""
    received = b""
    try:
        async for chunk in answer.content.iter_any():
            received += chunk
    except aiohttp.ClientPayloadError:
        return received, False
    return received, True
