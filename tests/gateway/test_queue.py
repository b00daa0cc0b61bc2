"""The bounded queue, deadlines and limits of a key."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.fake_engine import Trouble
from tests.gateway.fleet import CHAT, fleet
from tests.gateway.test_failure import until
from tests.gateway.test_resume import body_for
from tunan.config.deployment import Gateway
from tunan.gateway.limits import Limits, OverLimitError


async def test_requests_over_what_a_replica_may_have_wait_their_turn() -> None:
    async with fleet(2, max_in_flight=1) as door:
        for engine in door.engines:
            engine.gap_s = 0.002
        told = await asyncio.gather(*(door.ask(CHAT, body_for(CHAT, n)) for n in range(12)))
        assert all(one.done for one in told)
        assert all(len(engine.requests) > 1 for engine in door.engines)


async def test_a_full_queue_is_429_with_retry_after() -> None:
    async with fleet(1, max_in_flight=1, max_queued=1) as door:
        door.engines[0].troubles = [Trouble("stall", 1)]
        running = asyncio.create_task(door.ask(CHAT, body_for(CHAT)))
        await until(lambda: door.replicas[0].in_flight == 1)
        waiting = asyncio.create_task(door.ask(CHAT, body_for(CHAT)))
        await door.until_shown("tunan_gateway_queue_length 1.0")
        async with door.client.post(door.url + CHAT, json=body_for(CHAT)) as answer:
            assert answer.status == 429
            assert answer.headers["retry-after"]
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        assert (await waiting).done


async def test_who_waits_too_long_is_told_503() -> None:
    async with fleet(1, max_in_flight=1, queue_timeout_s=0.2) as door:
        door.engines[0].troubles = [Trouble("stall", 1)]
        running = asyncio.create_task(door.ask(CHAT, body_for(CHAT)))
        await until(lambda: door.replicas[0].in_flight == 1)
        async with door.client.post(door.url + CHAT, json=body_for(CHAT)) as answer:
            assert answer.status == 503
            assert answer.headers["retry-after"]
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_a_request_past_its_deadline_is_504() -> None:
    async with fleet(1, request_timeout_s=0.3) as door:
        door.engines[0].troubles = [Trouble("stall", 0)]
        told = await door.ask(CHAT, body_for(CHAT))
        assert told.status == 504
        await asyncio.wait_for(door.replicas[0].empty(), 60)


async def test_a_stream_past_its_deadline_is_ended() -> None:
    async with fleet(1, request_timeout_s=3) as door:  # enough for three events
        door.engines[0].troubles = [Trouble("stall", 3)]
        told = await door.ask(CHAT, body_for(CHAT))
        assert told.error["type"] == "request_timeout"
        assert not told.complete
        await asyncio.wait_for(door.replicas[0].empty(), 60)


def test_a_key_may_make_so_many_requests_a_minute() -> None:
    now = [0.0]
    limits = Limits(Gateway(requests_per_minute=2), lambda: now[0])
    for _ in range(2):
        with limits.request("a"):
            pass
    with pytest.raises(OverLimitError) as error, limits.request("a"):
        pass
    assert error.value.wait_s == 30
    with limits.request("b"):
        pass
    now[0] += 31
    with limits.request("a"):
        pass


def test_a_key_may_use_so_many_tokens_a_minute() -> None:
    now = [0.0]
    limits = Limits(Gateway(tokens_per_minute=60), lambda: now[0])
    with limits.request("a"):
        limits.used("a", 90)
    with pytest.raises(OverLimitError) as error, limits.request("a"):
        pass
    assert error.value.wait_s == 31
    now[0] += 31
    with limits.request("a"):
        pass


def test_a_key_may_have_so_many_requests_at_once() -> None:
    limits = Limits(Gateway(requests_at_once=1), lambda: 0.0)
    with limits.request("a"):
        with pytest.raises(OverLimitError, match="at once"), limits.request("a"):
            pass
        with limits.request("b"):
            pass
    with limits.request("a"):
        pass


async def test_a_key_over_its_limit_is_429(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a-key-of-enough-length\nanother-key-of-length")
    async with fleet(1, requests_per_minute=1, api_keys_file=keys) as door:
        for key, statuses in (
            ("a-key-of-enough-length", (200, 429)),
            ("another-key-of-length", (200,)),
        ):
            headers = {"Authorization": f"Bearer {key}"}
            for status in statuses:
                async with door.client.post(
                    door.url + CHAT, json=body_for(CHAT), headers=headers
                ) as answer:
                    assert answer.status == status
                    await answer.read()


@pytest.mark.parametrize("more", [{"stream": False}, {"n": 2}], ids=["whole", "passed on"])
async def test_tokens_of_answers_that_are_not_read_are_counted_too(more: dict[str, Any]) -> None:
    async with fleet(1, tokens_per_minute=60) as door:
        door.engines[0].eos = False
        door.engines[0].gap_s = 0.001
        statuses = [(await door.ask(CHAT, body_for(CHAT) | more)).status for _ in range(2)]
        assert statuses == [200, 429]
