"""SIGTERM before the engine is ready, with a real process that is deaf to it."""

import asyncio
from pathlib import Path

import pytest

from tests.serving import running
from tests.supervisor.test_process import start
from tunan.config import deployment_from
from tunan.gateway.replica import Replica, Stage
from tunan.supervisor.process import STOP_TIMEOUT_S
from tunan.supervisor.report import Report
from tunan.supervisor.service import FATAL_GRACE_S, Stop, _Service


@pytest.mark.parametrize("stage", [Stage.STARTING, Stage.LOADING, Stage.WARMING])
async def test_an_engine_that_does_not_hear_sigterm_while_it_starts_is_killed(
    tmp_path: Path, stage: Stage
) -> None:
    (tmp_path / "processes").mkdir()
    engine, pids = await start(tmp_path / "processes")
    replica, stop = Replica(tmp_path / "engine.sock"), Stop()
    replica.move(stage)
    stop.asked.set()
    deployment = deployment_from({"model": {"path": "/m"}}, "test")
    log = tmp_path / "engine.log"
    log.touch()
    service = _Service(deployment, replica, engine, Report(False), stop, log, "http://x")
    # Not after the time that an engine with requests has.
    assert await asyncio.wait_for(service.run(), STOP_TIMEOUT_S - 3) == 0
    assert not [pid for pid in pids if running(pid)]


async def test_a_log_that_cannot_be_opened_does_not_end_a_healthy_engine(tmp_path: Path) -> None:
    (tmp_path / "processes").mkdir()
    engine, _ = await start(tmp_path / "processes")
    deployment = deployment_from({"model": {"path": "/m"}}, "test")
    replica, stop = Replica(tmp_path / "engine.sock"), Stop()
    absent = tmp_path / "no.log"
    service = _Service(deployment, replica, engine, Report(False), stop, absent, "http://x")
    died = asyncio.create_task(service._died())
    try:
        done, _ = await asyncio.wait({died}, timeout=FATAL_GRACE_S + 1)
        assert not done
    finally:
        died.cancel()
        await engine.kill()
