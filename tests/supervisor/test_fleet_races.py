"""What may come at once: a loss in the warm-up, a rollout while an engine dies or none is ready."""

import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.supervisor.fleets import FakeFleet, running, use_fake_engines
from tunan.errors import CheckFailedError
from tunan.supervisor.process import descendants


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """With a path that is short enough for sockets."""
    use_fake_engines(monkeypatch)
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


async def test_a_replica_lost_in_its_warm_up_is_not_ready_when_that_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunan.supervisor.engine_run.FATAL_GRACE_S", 1.5)
    fleet = FakeFleet(folder, count=2)
    fleet.behave(1, "doom (EngineCore pid=1) ERROR EngineCore encountered a fatal error.")
    async with running(fleet):
        await fleet.until_event("restarting")
        assert [event["replica"] for event in fleet.report.named("ready")] == ["replica-0"]
        assert len(fleet.report.named("lost")) == 1
        fleet.behave(1, "serve")
        await fleet.until(True, True)


async def test_a_rollout_that_meets_a_dying_engine_waits_for_its_next_start(folder: Path) -> None:
    fleet = FakeFleet(folder, count=2)
    async with running(fleet):
        await fleet.until(True, True)
        pid = fleet.lives[0].pid
        assert pid is not None
        # The API server stays a second longer, in which its engine has died already.
        os.kill(descendants(pid)[-1], signal.SIGKILL)
        await fleet.until(False, True)
        await fleet.rollout(lambda _: None)
        assert all(replica.ready for replica in fleet.pool.replicas)
        assert [life.starts for life in fleet.lives] == [2, 2]
        assert fleet.report.named("restarting") == []


async def test_a_fleet_that_ends_while_a_dying_engine_is_renewed_ends_at_once(
    folder: Path,
) -> None:
    fleet = FakeFleet(folder, count=2)
    async with running(fleet) as run:
        await fleet.until(True, True)
        pid = fleet.lives[0].pid
        assert pid is not None
        os.kill(descendants(pid)[-1], signal.SIGKILL)
        await fleet.until(False, True)
        rollout = asyncio.create_task(fleet.rollout(lambda _: None))
        await asyncio.sleep(0)
        fleet.stop.asked.set()
        with pytest.raises(CheckFailedError, match="told to stop"):
            await rollout
        assert await asyncio.wait_for(run, 120) == 0


async def test_a_rollout_before_the_service_was_ready_is_refused(folder: Path) -> None:
    fleet = FakeFleet(folder, count=1, standby=1)
    fleet.behave(0, "hang")
    async with running(fleet):
        with pytest.raises(CheckFailedError, match="has not been ready yet"):
            await fleet.rollout(lambda _: None)
        assert fleet.lives[1].starts == 0


async def test_a_process_that_cannot_be_killed_is_named_and_not_waited_for_for_ever(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = FakeFleet(folder)
    async with running(fleet) as run:
        await fleet.until(True)
        monkeypatch.setattr("tunan.supervisor.process.KILL_S", 0.1)
        # As of one that sleeps in its driver, which a test cannot make.
        monkeypatch.setattr("tunan.supervisor.process._members", lambda _group: [1 << 30])
        pid = fleet.lives[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        stuck = await fleet.until_event("stuck")
        assert stuck["pids"] == [1 << 30]
        await fleet.until(True)
        fleet.stop.asked.set()
        assert await asyncio.wait_for(run, 120) == 0
