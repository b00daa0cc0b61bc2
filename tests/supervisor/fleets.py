"""Fleets of fake engines: real processes, sockets, pidfds and signals, without vLLM."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tunan.config import Deployment, deployment_from
from tunan.gateway.pool import Pool
from tunan.gateway.replica import Replica, Role, UnixAddress
from tunan.supervisor.device_memory import IsFree, always_free
from tunan.supervisor.fleet import Fleet
from tunan.supervisor.launch import Launch
from tunan.supervisor.life import Life, Plan
from tunan.supervisor.orders import Orders, Stop
from tunan.supervisor.report import Report

FAKE_ENGINE = Path(__file__).with_name("fake_engine.py")
SOON = {"first_wait_s": 0.05, "longest_wait_s": 0.2}
PATIENCE_S = 120


class FakeReport(Report):
    """Keeps the events instead of writing them."""

    def __init__(self) -> None:
        super().__init__(as_json=True)
        self.events: list[dict[str, Any]] = []

    def event(self, name: str, text: str = "", **values: object) -> None:
        self.events.append({"event": name, "text": text, **values})

    def named(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == name]


class FakeFleet(Fleet):
    """A fleet of fake engines in `folder`, whose N-th behaves as the file `behaviour-N` says."""

    def __init__(
        self,
        folder: Path,
        count: int = 1,
        standby: int = 0,
        restart: dict[str, object] | None = None,
        gateway: dict[str, object] | None = None,
    ) -> None:
        self.folder = folder
        self.report, self.stop = FakeReport(), Stop()
        self.memory_is_free: IsFree = always_free
        deployment = deployment_from(
            {
                "model": {"path": "/m/fake"},
                "warmup": {"requests": 1},
                "replicas": {
                    "count": count,
                    "standby": standby,
                    "restart": {**SOON, **(restart or {})},
                },
                "gateway": {"port": 0, **(gateway or {})},
            },
            "test",
        )
        plans = [self._plan(deployment, number) for number in range(count + standby)]
        roles = [Role.ACTIVE] * count + [Role.STANDBY] * standby
        replicas = [
            Replica(UnixAddress(plan.socket), f"replica-{number}", role)
            for number, (plan, role) in enumerate(zip(plans, roles, strict=True))
        ]
        super().__init__(deployment, Pool(replicas), self.report, self.stop, "http://fake")
        self.lives = tuple(
            Life(
                plan,
                replica,
                Orders(self.stop.insisted),
                self.about(replica),
                may_retry=self.has_served,
                on_failed=self.life_failed,
            )
            for plan, replica in zip(plans, replicas, strict=True)
        )

    def _plan(self, deployment: Deployment, number: int) -> Plan:
        directory = self.folder / str(number)

        def launch(deployment: Deployment) -> Launch:
            arguments = (
                f"--uds={directory / 'engine.sock'}",
                f"--behaviour={self.folder / f'behaviour-{number}'}",
                f"--gpu-memory-utilization={deployment.memory.utilization}",
            )
            return Launch(arguments, {}, False, "a fake device", directory)

        return Plan(
            deployment,
            launch(deployment),
            directory,
            self.folder / f"engine-{number}.log",
            memory_is_free=lambda: self.memory_is_free(),
            relaunch=launch,
        )

    def behave(self, number: int, behaviour: str) -> None:
        """From its next start on."""
        (self.folder / f"behaviour-{number}").write_text(behaviour)

    async def until(self, *ready: bool) -> None:
        """Waits until the replicas are ready, or not, as said."""
        async with asyncio.timeout(PATIENCE_S):
            while tuple(replica.ready for replica in self.pool.replicas) != ready:
                await self.pool.changed(0.1)

    async def until_event(self, name: str, times: int = 1) -> dict[str, Any]:
        """The event `name`, when it has come so often."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.report.named(name)) < times:  # noqa: ASYNC110  # a plain list
                await asyncio.sleep(0.01)
        return self.report.named(name)[times - 1]


@contextlib.asynccontextmanager
async def running(fleet: FakeFleet) -> AsyncIterator["asyncio.Task[int]"]:
    """The fleet's `run()` while the block runs; no engine is left afterwards."""
    task = asyncio.create_task(fleet.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def fake_command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, str(FAKE_ENGINE), *arguments]


def use_fake_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every engine that is started is `fake_engine.py`."""
    monkeypatch.setattr("tunan.supervisor.process.launcher_command", fake_command)
