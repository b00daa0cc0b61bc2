"""Noticing that a replica is gone, and what must not be taken for it."""

import asyncio
import contextlib
import itertools
import os
import resource
import socket
from typing import Any

import pytest
from aiohttp import web

from tests.gateway.fake_engine import Trouble
from tests.gateway.fleet import CHAT, fleet
from tests.gateway.test_resume import body_for, same, undisturbed
from tunan.config.deployment import Gateway
from tunan.gateway.health import Health
from tunan.gateway.pool import Pool
from tunan.gateway.probes import Probes
from tunan.gateway.replica import HttpAddress, Replica, Role, Stage
from tunan.gateway.upstream import Upstreams

QUICK: dict[str, Any] = {
    "stall_s": 0.3,
    "stall_multiple": 1,
    "probe_timeout_s": 0.2,
    "probe_interval_s": 0.05,
}


async def until(what: Any, seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not what():  # noqa: ASYNC110  # anything may make it so
            await asyncio.sleep(0.01)


async def test_a_stalled_stream_goes_on_elsewhere_and_its_replica_is_lost() -> None:
    async with fleet(**QUICK) as door:
        body = body_for(CHAT)
        whole = await undisturbed(door, CHAT, body)
        door.engines[0].troubles = [Trouble("stall", 8)]
        door.engines[0].healthy = False
        lost: list[str] = []
        door.replicas[0].on_lost.append(lambda _, reason: lost.append(reason))
        same(await door.ask(CHAT, body), whole)
        assert len(lost) == 1


async def test_a_stall_counts_later_while_probes_are_answered() -> None:
    async with fleet(**QUICK) as door:
        body = body_for(CHAT)
        whole = await undisturbed(door, CHAT, body)
        door.engines[0].troubles = [Trouble("stall", 8)]
        lost: list[str] = []
        door.replicas[0].on_lost.append(lambda _, reason: lost.append(reason))
        same(await door.ask(CHAT, body), whole)
        assert lost == ["its streams stand still"]


async def test_a_replica_that_is_held_is_still_watched() -> None:
    async with fleet(**QUICK) as door:
        body = body_for(CHAT)
        whole = await undisturbed(door, CHAT, body)
        door.engines[0].troubles = [Trouble("stall", 8)]
        asked = asyncio.create_task(door.ask(CHAT, body))
        await until(lambda: door.replicas[0].in_flight == 1)
        door.replicas[0].hold(True)
        same(await asyncio.wait_for(asked, 20), whole)


async def test_a_body_whose_framing_breaks_is_noticed_at_once() -> None:
    async with fleet(stall_s=60) as door:
        body = body_for(CHAT)
        whole = await undisturbed(door, CHAT, body)
        door.engines[0].troubles = [Trouble("broken framing", 8)]
        same(await asyncio.wait_for(door.ask(CHAT, body), 20), whole)


async def test_one_silent_stream_beside_others_that_go_on_is_not_a_stall() -> None:
    async with fleet(1, **QUICK) as door:
        engine, replica = door.engines[0], door.replicas[0]
        engine.eos = False
        engine.gap_s = 0.02
        engine.troubles = [Trouble("stall", 5)]
        aside = asyncio.create_task(door.ask(CHAT, body_for(CHAT)))
        await until(lambda: len(engine.requests) == 1)
        told = await door.ask(CHAT, body_for(CHAT, max_tokens=80, min_tokens=80))
        assert told.done
        assert replica.ready
        aside.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await aside


async def test_the_time_to_the_first_token_has_an_allowance_of_its_own() -> None:
    async with fleet(1, **QUICK) as door:
        door.engines[0].troubles = [Trouble("stall", 0)]
        asked = asyncio.create_task(door.ask(CHAT, body_for(CHAT)))
        await asyncio.sleep(1)
        assert door.replicas[0].ready
        asked.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asked


async def test_a_slow_reader_is_no_stall_and_holds_nobody_up() -> None:
    async with fleet(1, **QUICK) as door:
        for engine in door.engines:
            engine.eos = False
        host, port = door.url.removeprefix("http://").split(":")
        slow = socket.create_connection((host, int(port)))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = (
            b'{"messages": [{"role": "user", "content": "x"}], "stream": true,'
            b'"temperature": 0, "max_tokens": 20000}'
        )
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        slow.sendall(head.encode() + body)
        await until(lambda: door.replicas[0].in_flight == 1)
        told = await asyncio.wait_for(door.ask(CHAT, body_for(CHAT)), 20)
        assert told.done
        await asyncio.sleep(1)
        assert door.replicas[0].ready
        slow.close()
        await asyncio.wait_for(door.replicas[0].empty(), 20)


async def test_a_client_that_leaves_frees_the_slot_and_loses_no_replica() -> None:
    async with fleet(1, **QUICK) as door:
        door.engines[0].troubles = [Trouble("stall", 3)]
        async with door.client.post(door.url + CHAT, json=body_for(CHAT)) as answer:
            await answer.content.readany()
            answer.close()
        await asyncio.wait_for(door.engines[0].cancelled.wait(), 5)
        await asyncio.wait_for(door.replicas[0].empty(), 5)
        assert door.replicas[0].ready


async def test_a_replica_at_which_nothing_listens_is_lost_at_once() -> None:
    async with fleet(2, probe_interval_s=60) as door:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            door.replicas[0].address = HttpAddress(f"http://127.0.0.1:{free.getsockname()[1]}")
        told = await door.ask(CHAT, body_for(CHAT))
        assert told.done
        assert door.replicas[0].stage is Stage.DOWN


async def test_all_down_is_a_quick_503() -> None:
    async with fleet(2, probe_interval_s=60) as door:
        for replica in door.replicas:
            replica.lose("gone")
        async with door.client.post(door.url + CHAT, json=body_for(CHAT)) as answer:
            assert answer.status == 503
            assert "retry-after" in answer.headers


async def test_a_broken_stream_waits_for_a_replica_that_comes_back() -> None:
    async with fleet(1, resume_wait_s=10, probe_interval_s=60) as door:
        body = body_for(CHAT)
        whole = await door.ask(CHAT, body)
        door.engines[0].troubles = [Trouble("stall", 6)]
        asked = asyncio.create_task(door.ask(CHAT, body))
        await until(lambda: door.replicas[0].in_flight == 1)
        await asyncio.sleep(0.2)
        door.replicas[0].lose("its process has ended")
        await asyncio.sleep(0.2)
        assert not asked.done()
        door.replicas[0].restart()
        door.replicas[0].move(Stage.READY)
        told = await asked
        assert (told.text, told.done) == (whole.text, True)


async def test_a_replica_elsewhere_gets_ready_by_its_probes_and_is_lost_by_them() -> None:
    async with fleet(2, **QUICK) as door:
        replica: Replica = door.replicas[0]
        replica.lose("test")
        await until(lambda: replica.ready)
        door.engines[0].healthy = False
        await until(lambda: replica.stage is Stage.DOWN)
        assert "health probes" in replica.problem
        door.engines[0].healthy = True
        await until(lambda: replica.ready)


async def test_a_late_probe_does_not_make_a_replica_ready_while_the_gateway_ends() -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slow(request: web.BaseRequest) -> web.Response:
        asked.set()
        await answer.wait()
        return web.json_response({"ready": True})

    runner = web.ServerRunner(web.Server(slow))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    replica = Replica(HttpAddress(f"http://127.0.0.1:{runner.addresses[0][1]}"))
    pool, settings = Pool([replica]), Gateway(probe_interval_s=0.01, probe_timeout_s=60)
    async with Upstreams([replica]) as upstreams, Probes(pool, upstreams, settings).running():
        await asked.wait()
        pool.close()
        asked.clear()
        answer.set()
        await asked.wait()  # the next probe: the one before has been judged
        assert replica.stage is Stage.DRAINING
    await runner.cleanup()


async def test_a_server_error_alone_does_not_lose_a_replica() -> None:
    async with fleet() as door:
        for _ in range(8):
            door.engines[0].troubles = [Trouble("status")]
            assert (await door.ask(CHAT, body_for(CHAT))).done
        await asyncio.sleep(0.2)
        assert door.replicas[0].ready


async def test_the_only_replica_is_not_given_up_for_a_short_silence() -> None:
    async with fleet(1, **QUICK) as door:
        door.engines[0].troubles = [Trouble("stall", 8)]
        asked = asyncio.create_task(door.ask(CHAT, body_for(CHAT)))
        await asyncio.sleep(2)
        assert door.replicas[0].ready
        asked.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asked


async def test_an_answer_that_is_not_streamed_may_take_longer_than_the_first_token() -> None:
    async with fleet(**QUICK, first_token_s=0.2) as door:
        door.engines[0].troubles = [Trouble("stall")]
        asked = asyncio.create_task(door.ask(CHAT, body_for(CHAT) | {"stream": False}))
        await asyncio.sleep(2)
        assert door.replicas[0].ready
        door.engines[0].go_on.set()
        assert (await asked).status == 200
        assert door.engines[1].requests == []


@pytest.mark.parametrize("works", [True, False])
async def test_an_engine_is_lost_under_a_silent_answer_only_if_its_counters_stand_still(
    works: bool,
) -> None:
    async with fleet(**QUICK, first_token_s=0.5) as door:
        lost: list[str] = []
        door.replicas[0].on_lost.append(lambda _, reason: lost.append(reason))
        told = itertools.count()
        door.engines[0].metrics = lambda: (
            f'vllm:generation_tokens_total{{a="b"}} {next(told) if works else 7}\n'
        )
        door.engines[0].troubles = [Trouble("stall")]
        asked = asyncio.create_task(door.ask(CHAT, body_for(CHAT) | {"stream": False}))
        if not works:
            assert (await asked).status == 200
            assert lost == ["its engine stands still"]
            assert len(door.engines[1].requests) == 1
            return
        await asyncio.sleep(2)
        assert lost == []
        door.engines[0].go_on.set()
        assert (await asked).status == 200
        assert door.engines[1].requests == []


async def test_a_replica_whose_process_is_stopped_is_lost_though_nothing_is_silent_yet() -> None:
    async with fleet(probe_interval_s=60) as door:
        door.replicas[0].freeze("its process was stopped", 0)
        await until(lambda: door.replicas[0].stage is Stage.DOWN)
        assert door.replicas[0].problem == "its process was stopped"


async def test_replicas_that_are_taken_away_as_planned_do_not_count_as_dead() -> None:
    async with fleet(2, max_losses=1, probe_interval_s=60) as door:
        body = body_for(CHAT)
        whole = await undisturbed(door, CHAT, body)
        door.engines[0].troubles = [Trouble("stall", 6)]
        asked = asyncio.create_task(door.ask(CHAT, body))
        await until(lambda: door.replicas[0].heard_at > 0 and door.replicas[0].in_flight == 1)
        door.replicas[0].lose("it is being restarted", planned=True)
        same(await asked, whole)


async def test_a_parser_that_keeps_a_tool_call_back_is_no_stall() -> None:
    async with fleet(**QUICK) as door:
        lost: list[str] = []
        door.replicas[0].on_lost.append(lambda _, reason: lost.append(reason))
        door.engines[0].gap_s = 0.01
        door.engines[0].troubles = [Trouble("stall", 8)]
        body = body_for(CHAT, tools=[{"type": "function"}])
        asked = asyncio.create_task(door.ask(CHAT, body))
        await asyncio.sleep(2)
        assert lost == []
        asked.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asked


async def test_what_the_server_answers_without_its_model_hides_no_stall() -> None:
    async with fleet(**QUICK) as door:
        body = body_for(CHAT)
        whole = await undisturbed(door, CHAT, body)
        door.replicas[1].role = Role.STANDBY
        door.engines[0].gap_s = 0.01
        door.engines[0].troubles = [Trouble("stall", 8)]
        asked = asyncio.create_task(door.ask(CHAT, body))
        async with asyncio.timeout(10):
            while not asked.done():
                async with door.client.get(f"{door.url}/v1/models") as answer:
                    await answer.read()
                await asyncio.sleep(0.05)
        same(await asked, whole)


async def test_a_long_answer_that_moves_owes_what_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tunan.gateway.call.UNLIMITED_ANSWER_TOKENS", 1)
    async with fleet(stall_s=60) as door:
        for engine in door.engines:
            engine.eos = False
        door.engines[0].troubles = [Trouble("error event", 38)]
        door.engines[1].troubles = [Trouble("stall", 0)]
        body = {key: value for key, value in body_for(CHAT).items() if key != "max_tokens"}
        asked = asyncio.create_task(door.ask(CHAT, body))
        await until(lambda: len(door.engines[1].requests) == 1)
        assert door.replicas[1].outstanding_tokens > 38
        asked.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asked


async def test_a_gateway_without_a_file_left_blames_no_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tunan.gateway.upstream.KEEP_ALIVE_S", 0.05)
    async with fleet(probe_interval_s=60) as door, Upstreams(door.replicas) as upstreams:
        health = Health(door.pool, upstreams, Gateway())
        async with door.client.get(door.url + "/health") as answer:  # this connection stays open
            await answer.read()
        await asyncio.sleep(0.2)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            assert await health.alive(door.replicas[0])
            async with door.client.post(door.url + CHAT, json=body_for(CHAT)) as answer:
                assert answer.status == 503
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert all(replica.ready for replica in door.replicas)
        assert (await door.ask(CHAT, body_for(CHAT))).done
