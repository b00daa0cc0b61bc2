"""SIGTERM before the engine is ready, with a real process that is deaf to it."""

import asyncio
from pathlib import Path

import pytest

from tests.serving import running
from tests.supervisor.test_process import start
from tunan.config import deployment_from
from tunan.gateway.replica import Replica, Stage, UnixAddress
from tunan.supervisor.engine_run import FATAL_GRACE_S, Drained, EngineRun
from tunan.supervisor.orders import Orders
from tunan.supervisor.process import EngineProcess
from tunan.supervisor.report import About, Report


def run_of(engine: EngineProcess, log: Path, replica: Replica, orders: Orders) -> EngineRun:
    deployment = deployment_from({"model": {"path": "/m"}}, "test")
    socket, about = log.with_name("engine.sock"), About(Report(False), replica.name)
    return EngineRun(
        deployment, replica, engine, socket, orders, about, log, lambda: None, compiles=False
    )


@pytest.mark.parametrize("stage", [Stage.STARTING, Stage.LOADING, Stage.WARMING])
async def test_an_engine_that_does_not_hear_sigterm_while_it_starts_is_killed(
    tmp_path: Path, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "processes").mkdir()
    engine, pids = await start(tmp_path / "processes")
    replica, orders = Replica(UnixAddress(tmp_path / "engine.sock")), Orders()
    replica.move(stage)
    orders.stop()
    log = tmp_path / "engine.log"
    log.touch()
    run = run_of(engine, log, replica, orders)
    # Not after the time that an engine with requests has.
    monkeypatch.setattr("tunan.supervisor.engine_run.STOP_TIMEOUT_S", 3600)
    assert await asyncio.wait_for(run.until_over(), 120) == Drained()
    assert not [pid for pid in pids if running(pid)]


async def test_a_log_that_cannot_be_opened_does_not_end_a_healthy_engine(tmp_path: Path) -> None:
    (tmp_path / "processes").mkdir()
    engine, _ = await start(tmp_path / "processes")
    replica = Replica(UnixAddress(tmp_path / "engine.sock"))
    run = run_of(engine, tmp_path / "no.log", replica, Orders())
    died = asyncio.create_task(run._died())
    try:
        done, _ = await asyncio.wait({died}, timeout=FATAL_GRACE_S + 1)
        assert not done
    finally:
        died.cancel()
        await engine.kill()
