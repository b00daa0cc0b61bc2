"""Replicas together, as fake engines that are real processes: death, backoff, drain, rollout."""

import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.serving import wait_until_gone
from tests.supervisor.fleets import FakeFleet, running, use_fake_engines
from tunan.errors import CheckFailedError, OutsideError, UsageError
from tunan.gateway.app import front_door
from tunan.gateway.replica import Role, Stage
from tunan.gateway.server import address_of, bind, serving
from tunan.supervisor.process import descendants


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """With a path that is short enough for sockets."""
    use_fake_engines(monkeypatch)
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


def pid_of(fleet: FakeFleet, number: int) -> int:
    pid = fleet.lives[number].pid
    assert pid is not None
    return pid


async def test_the_first_replica_starts_alone_and_then_the_others(folder: Path) -> None:
    fleet = FakeFleet(folder, count=1, standby=1)
    async with running(fleet):
        await fleet.until(True, False)
        await fleet.until(True, True)
        first, second = fleet.report.named("ready")
        assert (first["replica"], second["replica"]) == ("replica-0", "replica-1")
        assert "curl" in first["text"]
        assert second["text"] == "tunan: replica-1: ready"


@pytest.mark.parametrize("below", [False, True], ids=["API server", "child"])
async def test_a_killed_process_is_noticed_and_the_replica_comes_back(
    folder: Path, below: bool
) -> None:
    fleet = FakeFleet(folder, count=2)
    async with running(fleet):
        await fleet.until(True, True)
        pid = pid_of(fleet, 0)
        processes = [pid, *descendants(pid)]
        os.kill(processes[-1] if below else pid, signal.SIGKILL)
        await fleet.until(False, True)
        await fleet.until(True, True)
        assert wait_until_gone(processes) == []
        assert pid_of(fleet, 0) != pid
        (lost,) = fleet.report.named("lost")
        assert (lost["replica"], lost["text"]) == ("replica-0", "")
        (restarting,) = fleet.report.named("restarting")
        assert f"(pid {processes[-1] if below else pid})" in restarting["cause"]
        assert "starting it again in 0.05 s" in restarting["text"]
        assert fleet.lives[0].starts == 2


async def test_an_engine_that_the_gateway_loses_is_killed_and_started_again(folder: Path) -> None:
    fleet = FakeFleet(folder, count=2)
    async with running(fleet):
        await fleet.until(True, True)
        frozen = pid_of(fleet, 1)
        os.kill(frozen, signal.SIGSTOP)
        fleet.pool.replicas[1].lose("a stream stalled")
        await fleet.until(True, True)
        assert wait_until_gone([frozen]) == []
        assert fleet.report.named("restarting")[0]["cause"] == "a stream stalled"


async def test_a_stopped_process_is_told_to_the_gateway_until_it_goes_on(folder: Path) -> None:
    fleet = FakeFleet(folder)
    async with running(fleet):
        await fleet.until(True)
        (core,) = descendants(pid_of(fleet, 0))
        os.kill(core, signal.SIGSTOP)
        await until_frozen(fleet, True)
        assert f"(pid {core}) was stopped by a signal" in fleet.pool.replicas[0].frozen
        os.kill(core, signal.SIGCONT)
        await until_frozen(fleet, False)
        os.kill(core, signal.SIGSTOP)
        await until_frozen(fleet, True)
        fleet.pool.replicas[0].lose("test")
        await fleet.until(True)
        assert fleet.pool.replicas[0].frozen == ""


async def test_a_replica_with_a_stopped_process_is_lost_and_started_again(folder: Path) -> None:
    fleet = FakeFleet(folder, count=2)
    async with running(fleet), front_door(fleet.pool, fleet.deployment.gateway):
        await fleet.until(True, True)
        pid = pid_of(fleet, 0)
        (core,) = descendants(pid)
        os.kill(core, signal.SIGSTOP)
        lost = await fleet.until_event("lost")
        assert f"(pid {core}) was stopped by a signal" in lost["what"]
        await fleet.until(True, True)
        assert wait_until_gone([pid, core]) == []


async def until_frozen(fleet: FakeFleet, frozen: bool) -> None:
    async with asyncio.timeout(20):
        while bool(fleet.pool.replicas[0].frozen) != frozen:  # noqa: ASYNC110  # not told
            await asyncio.sleep(0.01)


async def test_what_a_dead_engine_logged_is_the_cause_and_the_log_is_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunan.supervisor.engine_run.FATAL_GRACE_S", 0.1)
    fleet = FakeFleet(folder, count=2)
    async with running(fleet):
        await fleet.until(True, True)
        log = fleet.lives[0].plan.log
        with log.open("a") as file:
            file.write("(EngineCore pid=1) ERROR EngineCore encountered a fatal error.\n")
            file.write("(EngineCore pid=1) RuntimeError: the cause\n")
        await fleet.until_event("restarting")
        await fleet.until(True, True)
        assert fleet.report.named("restarting")[0]["cause"] == "RuntimeError: the cause"
        assert "the cause" in log.with_name(f"{log.name}.1").read_text()


async def test_a_first_start_that_fails_ends_the_service_at_once(folder: Path) -> None:
    fleet = FakeFleet(folder, count=2)
    fleet.behave(0, "fail ValueError: no such model")
    with pytest.raises(OutsideError, match="the engine died: ValueError: no such model; its log"):
        await fleet.run()
    assert [event["event"] for event in fleet.report.events] == ["lost", "failed"]
    assert fleet.report.named("failed")[0]["text"] == ""  # it is the error that ends the service
    assert fleet.lives[1].starts == 0


async def test_the_breaker_opens_after_failures_in_a_row_and_the_others_serve(
    folder: Path,
) -> None:
    fleet = FakeFleet(folder, count=2, restart={"failures": 3})
    async with running(fleet) as run:
        await fleet.until(True, True)
        fleet.behave(0, "fail RuntimeError: broken")
        os.kill(pid_of(fleet, 0), signal.SIGKILL)
        failed = await fleet.until_event("failed")
        assert (failed["failures"], failed["cause"]) == (3, "RuntimeError: broken")
        assert "replica-0: the engine died: RuntimeError: broken; its log" in failed["text"]
        assert "it failed 3 times in a row; it stays down until `tunan rollout`" in failed["text"]
        assert [event["wait_s"] for event in fleet.report.named("restarting")] == [0.05, 0.1]
        assert fleet.pool.replicas[0].stage is Stage.FAILED
        assert fleet.pool.replicas[1].ready
        assert not run.done()


async def test_when_the_last_replica_fails_the_service_ends_with_its_error(folder: Path) -> None:
    fleet = FakeFleet(folder, restart={"failures": 2})
    async with running(fleet) as run:
        await fleet.until(True)
        fleet.behave(0, "fail RuntimeError: broken")
        os.kill(pid_of(fleet, 0), signal.SIGKILL)
        with pytest.raises(OutsideError, match=r"broken; its log .*; it failed 2 times in a row"):
            await run


async def test_a_flag_that_the_engine_refuses_is_not_tried_again(folder: Path) -> None:
    fleet = FakeFleet(folder)
    async with running(fleet) as run:
        await fleet.until(True)
        fleet.behave(0, "refuse unrecognized arguments: --no")
        os.kill(pid_of(fleet, 0), signal.SIGKILL)
        with pytest.raises(UsageError, match="unrecognized arguments: --no"):
            await run
        assert fleet.lives[0].starts == 2


async def test_an_engine_that_dies_in_its_warm_up_has_failed(folder: Path) -> None:
    fleet = FakeFleet(folder)
    fleet.behave(0, "die")
    with pytest.raises(OutsideError, match="RuntimeError: died as it was told to"):
        await fleet.run()


async def test_a_start_that_stands_still_is_given_up(folder: Path) -> None:
    fleet = FakeFleet(folder, gateway={"startup_timeout_s": 0.5})
    fleet.behave(0, "hang")
    with pytest.raises(OutsideError, match=r"has stood at 'starting' for 0\.5 s"):
        await fleet.run()


async def test_a_restart_waits_until_the_device_is_free(folder: Path) -> None:
    fleet = FakeFleet(folder)
    async with running(fleet):
        await fleet.until(True)
        looks: list[bool] = []

        def is_free() -> bool:
            looks.append(fleet.lives[0].pid is None)
            return len(looks) == 3

        fleet.memory_is_free = is_free
        os.kill(pid_of(fleet, 0), signal.SIGKILL)
        await fleet.until(False)
        await fleet.until(True)
        assert looks == [True] * 3  # nothing of the old or the new engine runs meanwhile
        assert fleet.report.named("device_busy") == []


async def test_a_device_that_stays_taken_is_not_waited_for_longer_than_is_set(
    folder: Path,
) -> None:
    fleet = FakeFleet(folder, restart={"device_free_s": 0.1})
    fleet.memory_is_free = lambda: False
    async with running(fleet):
        await fleet.until(True)  # the first start waits for nothing
        os.kill(pid_of(fleet, 0), signal.SIGKILL)
        await fleet.until(False)
        await fleet.until(True)
        assert "still taken after 0.1 s" in fleet.report.named("device_busy")[0]["text"]


async def test_stopping_drains_all_and_leaves_no_process(folder: Path) -> None:
    fleet = FakeFleet(folder, count=1, standby=1)
    async with running(fleet) as run:
        await fleet.until(True, True)
        pids = [pid_of(fleet, 0), pid_of(fleet, 1)]
        processes = [*pids, *(below for pid in pids for below in descendants(pid))]
        with fleet.pool.replicas[0].answering():
            fleet.stop.asked.set()
            await fleet.until(False, False)
            assert fleet.pool.replicas[0].stage is Stage.DRAINING
            await fleet.until_event("draining")
            assert not run.done()
        assert await run == 0
        assert wait_until_gone(processes) == []
        assert fleet.report.named("stopped")[0]["cut"] == 0


async def test_stopping_at_the_start_starts_no_further_replica(folder: Path) -> None:
    fleet = FakeFleet(folder, count=1, standby=1)
    fleet.behave(0, "hang")
    async with running(fleet) as run:
        while not fleet.lives[0].pid:  # noqa: ASYNC110  # another process's start
            await asyncio.sleep(0.01)
        fleet.stop.asked.set()
        assert await run == 0
        assert [life.starts for life in fleet.lives] == [1, 0]


async def test_a_second_signal_ends_a_drain_at_once(folder: Path) -> None:
    fleet = FakeFleet(folder, count=2)
    async with running(fleet) as run:
        await fleet.until(True, True)
        with fleet.pool.replicas[1].answering():
            fleet.stop.asked.set()
            await fleet.until_event("draining")
            fleet.stop.insisted.set()
            assert await run == 128 + signal.SIGTERM


async def test_stopping_while_a_replica_waits_for_its_restart_ends_at_once(folder: Path) -> None:
    fleet = FakeFleet(folder, restart={"first_wait_s": 3600, "longest_wait_s": 3600})
    async with running(fleet) as run:
        await fleet.until(True)
        os.kill(pid_of(fleet, 0), signal.SIGKILL)
        await fleet.until_event("restarting")
        fleet.stop.asked.set()
        assert await asyncio.wait_for(run, 120) == 0


async def test_a_rollout_restarts_every_replica_and_loses_no_request(folder: Path) -> None:
    fleet = FakeFleet(folder, count=1, standby=1)
    with bind("127.0.0.1", 0) as listener:
        async with (
            running(fleet),
            front_door(fleet.pool, fleet.deployment.gateway) as app,
            serving(app, listener),
            aiohttp.ClientSession(address_of(listener)) as client,
        ):
            await fleet.until(True, True)
            before = [pid_of(fleet, 0), pid_of(fleet, 1)]
            said: list[str] = []
            rollout = asyncio.create_task(fleet.rollout(said.append))
            answers = await asyncio.gather(*(_ask_until(rollout, client) for _ in range(4)))
            await rollout
            assert not set(before) & {pid_of(fleet, 0), pid_of(fleet, 1)}
    assert sum(answers) > 4
    assert [event["replica"] for event in fleet.report.named("renewing")] == [
        "replica-1",
        "replica-0",
    ]
    assert said[-1] == "replica-0: ready"
    assert [life.starts for life in fleet.lives] == [2, 2]
    assert fleet.report.named("lost") == []


async def _ask_until(done: "asyncio.Task[None]", client: aiohttp.ClientSession) -> int:
    """Streams one after the other until `done`, each of which has to be whole; how many."""
    body = {"model": "fake", "prompt": "x", "max_tokens": 5, "stream": True}
    answers = 0
    while not done.done():
        async with client.post("/v1/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()
            text = await answer.text()
        assert [f" {n}" in text for n in range(5)] == [True] * 5
        assert text.endswith("data: [DONE]\n\n")
        answers += 1
    return answers


async def test_what_outlasts_the_drain_of_a_rollout_is_told_that_the_replica_is_lost(
    folder: Path,
) -> None:
    fleet = FakeFleet(folder, count=2, gateway={"shutdown_timeout_s": 0.1})
    async with running(fleet):
        await fleet.until(True, True)
        told: list[tuple[str, bool]] = []
        with fleet.pool.replicas[0].answering(10, lambda *cut: told.append(cut)):
            await fleet.rollout(lambda _: None)
        assert told == [("it is being restarted by `tunan rollout`", True)]
        assert all(replica.ready for replica in fleet.pool.replicas)


async def test_a_rollout_stops_where_a_replica_does_not_come_back(folder: Path) -> None:
    fleet = FakeFleet(folder, count=2, restart={"failures": 1})
    async with running(fleet):
        await fleet.until(True, True)
        fleet.behave(0, "fail ValueError: new settings are wrong")
        with pytest.raises(CheckFailedError, match=r"replica-0 did not come back: .*are wrong"):
            await fleet.rollout(lambda _: None)
        assert fleet.pool.replicas[1].ready
        assert fleet.lives[1].starts == 1
        # Once the reason is gone the next one brings it back.
        fleet.behave(0, "serve")
        await fleet.rollout(lambda _: None)
        assert fleet.lives[0].problem is None
        assert all(replica.ready for replica in fleet.pool.replicas)


async def test_a_rollout_that_would_leave_nobody_to_answer_is_refused(folder: Path) -> None:
    fleet = FakeFleet(folder, count=1, standby=1)
    fleet.behave(1, "hang")
    async with running(fleet):
        await fleet.until(True, False)
        fleet.lives = tuple(life for life in fleet.lives if life.replica.role is Role.ACTIVE)
        with pytest.raises(CheckFailedError, match="no other replica is ready, so replica-0"):
            await fleet.rollout(lambda _: None)


async def test_a_rollout_of_one_replica_is_wrong_use(folder: Path) -> None:
    fleet = FakeFleet(folder)
    async with running(fleet):
        await fleet.until(True)
        with pytest.raises(UsageError, match=r"set replicas\.count to 2 or replicas\.standby to 1"):
            await fleet.rollout(lambda _: None)


async def test_the_memory_that_the_second_replica_adds_is_told(folder: Path) -> None:
    fleet = FakeFleet(folder, count=2)
    async with running(fleet):
        memory = await fleet.until_event("memory")
        assert memory["replica"] == "replica-1"
        assert memory["added"] > 0
        assert memory["text"].startswith("tunan: replica-1: it takes ")
