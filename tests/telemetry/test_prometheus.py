"""A real Prometheus with the shipped configuration scrapes a real gateway and a real monitor.

What fails in that run: a device in every way, a replica under its streams, an engine that hangs,
and in the end everything. So not only dashboards but most alerts have something to show.
"""

import asyncio
import contextlib
import math
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from aiohttp import ClientConnectorError, ClientSession

from tests.ascend.fakebin.machine import FakeMachine, FakeProcess, a2
from tests.gateway.fake_engine import FakeEngine, Trouble, fake_engine
from tests.gateway.fleet import CHAT, Told, read
from tests.gateway.test_resume import body_for
from tests.telemetry.deployed import PROMETHEUS, alerts, panel_expressions, program
from tests.telemetry.deployed import rules as all_rules
from tests.telemetry.fake_vllm_metrics import FakeVllmMetrics

FAKEBIN = Path(__file__).parents[1] / "ascend/fakebin"
EVERY = "1s"
PATIENCE_S = 120.0
MONITOR = ("monitor", "--port", "0", "--interval", "0.5")

# Alerts that have something to show only after the run has gone on to that step.
WHEN_UNREADABLE = {"TunanNpusUnreadable"}
WHEN_NOT_READY = {"TunanNoReadyReplica", "TunanReplicaNotReady"}
WHEN_GONE = {"TunanMonitorDown", "TunanGatewayDown"}
WHEN_SHOWN_BY_THE_MONITOR = {"TunanTargetDown"}  # the gateway: the other test
# What this run cannot make true, and why. The cases for promtool have all of them.
_CONFIGURED = "the job is in the configuration"
NEVER = {
    "TunanNpuReadingsStale": "a reading would have to hang for a minute",
    "TunanMonitorAbsent": _CONFIGURED,
    "TunanGatewayAbsent": _CONFIGURED,
    "TunanQueueStuck": "nothing may wait before the first scrape, and nothing move after it",
}
# What only a machine that stands still for seconds makes true.
SELDOM = {"TunanTtftBudgetBurnsFast", "TunanTtftBudgetBurnsSlowly"}


async def test_every_expression_finds_its_metrics_in_a_real_run(tmp_path: Path) -> None:
    expressions = every_expression()
    of_steps = {*WHEN_UNREADABLE, *WHEN_NOT_READY, *WHEN_GONE, *WHEN_SHOWN_BY_THE_MONITOR}
    later = {*NEVER, *SELDOM, *of_steps}
    assert set(expressions) >= later

    def these(names: Iterable[str]) -> dict[str, str]:
        return {name: expressions[name] for name in names}

    async with site(tmp_path, one_job=False) as here:
        await here.prometheus.shows({"both are scraped": "count(up == 1) == 2"})
        await use(here.client, here.gateway.url, here.engines)
        worse(here.machine).write(here.machine_file)
        await here.prometheus.shows(these(set(expressions) - later))
        replace(here.machine, failure="dcmi module initialize failed").write(here.machine_file)
        await here.prometheus.shows(these(WHEN_UNREADABLE))
        await here.end_engines()
        await here.prometheus.shows(these(WHEN_NOT_READY))
        await here.gateway.end()
        await here.monitor.end()
        await here.prometheus.shows(these(WHEN_GONE))
        assert await here.prometheus.shown(these(NEVER)) == set()
        assert await here.prometheus.broken_rules() == []


async def test_one_job_sees_all_where_the_monitor_shows_the_gateway(tmp_path: Path) -> None:
    expressions = every_expression()
    async with site(tmp_path, one_job=True) as here:
        seen = "tunan_monitor_target_up == 1 and on () count(up) == 1"
        await here.prometheus.shows({"one is scraped": seen})
        await use(here.client, here.gateway.url, here.engines)
        worse(here.machine).write(here.machine_file)
        await here.prometheus.shows(panel_expressions())
        instance = f'{{instance="{here.gateway.url.removeprefix("http://")}"}}'
        whose = (f"tunan_gateway_replica_ready{instance}", f"vllm:num_requests_running{instance}")
        await here.prometheus.shows({name: name for name in whose})
        await here.gateway.end()
        await here.prometheus.shows({"TunanTargetDown": expressions["TunanTargetDown"]})
        assert (
            await here.prometheus.shown(
                {name: expressions[name] for name in ("TunanGatewayAbsent", "TunanGatewayDown")}
            )
            == set()
        )


def every_expression() -> dict[str, str]:
    """Those of alerts, recording rules and dashboards, by name."""
    expressions = {name: alert["expr"] for name, alert in alerts().items()}
    expressions |= {rule["record"]: rule["record"] for rule in all_rules() if "record" in rule}
    return expressions | panel_expressions()


@dataclass(frozen=True)
class Site:
    """What runs."""

    machine: FakeMachine
    machine_file: Path
    engines: list[FakeEngine]
    end_engines: Callable[[], Awaitable[None]]
    gateway: "Running"
    monitor: "Running"
    client: ClientSession
    prometheus: "Prometheus"


@contextlib.asynccontextmanager
async def site(folder: Path, one_job: bool) -> AsyncIterator[Site]:
    """Two engines, a gateway, a monitor and a Prometheus. With `one_job` it asks the monitor alone,
    which shows the gateway's metrics."""
    machine = a_sick_machine()
    file = machine.write(folder / "machine.json")
    async with contextlib.AsyncExitStack() as stack, ClientSession() as client:
        running = await stack.enter_async_context(contextlib.AsyncExitStack())
        engines = [await running.enter_async_context(fake_engine()) for _ in range(2)]
        engines[0].metrics, engines[1].metrics = FakeVllmMetrics(), FakeVllmMetrics(hangs=True)
        options = ("--config", str(gateway_file(folder, engines)))
        gateway = await stack.enter_async_context(started("gateway", *options))
        others = ("--scrape", gateway.url) if one_job else ()
        monitor = await stack.enter_async_context(
            started(*MONITOR, *others, environment=sees(file))
        )
        await ready(client, gateway.url)
        jobs = {"tunan-monitor": monitor.url} | ({} if one_job else {"tunan-gateway": gateway.url})
        url = await stack.enter_async_context(serving(folder, jobs))
        prometheus = Prometheus(client, url)
        yield Site(machine, file, engines, running.aclose, gateway, monitor, client, prometheus)


def a_sick_machine() -> FakeMachine:
    """Three devices, the first with everything wrong that a device tells."""
    machine = a2(3, link="DOWN", processes=(FakeProcess(0, 77, 512),))
    sick = replace(machine.dies[0], health="Alarm", temperature="97", memory=(65500, 65536))
    return replace(machine, dies=(sick, *machine.dies[1:]))


def worse(machine: FakeMachine) -> FakeMachine:
    """A device is gone, and the memory of another has new errors, corrected and not."""
    first, *others = machine.dies[:-1]
    return replace(machine, dies=(replace(first, single_bit=90, double_bit=2), *others))


def sees(machine: Path) -> dict[str, str]:
    """The environment in which npu-smi and hccn_tool are the stand-ins."""
    path = f"{FAKEBIN}:{os.environ['PATH']}"
    return {"PATH": path, "FAKE_PYTHON": sys.executable, "FAKE_MACHINE": str(machine)}


def gateway_file(folder: Path, engines: list[FakeEngine]) -> Path:
    """One request at a time at each replica, and only two may wait."""
    file = folder / "deploy.yaml"
    gateway = {"port": 0, "max_in_flight": 1, "max_queued": 2, "probe_interval_s": 0.02}
    replicas = [{"url": engine.url} for engine in engines]
    content = {"model": {"path": "/m"}, "gateway": gateway, "replicas": replicas}
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    return file


async def use(client: ClientSession, url: str, engines: list[FakeEngine]) -> None:
    """A stream that goes on elsewhere, one that cannot, some that wait, some that are refused."""
    for engine in engines:
        engine.troubles = [Trouble("reset", 4)]
    assert (await ask(client, url + CHAT, body_for(CHAT, min_tokens=39))).done
    for engine in engines:
        engine.troubles = [Trouble("reset", 4)]
    assert (await ask(client, url + CHAT, body_for(CHAT, n=2, min_tokens=39))).error
    for engine in engines:
        engine.troubles = []
        engine.gap_s = 0.01
    asked = [ask(client, url + CHAT, body_for(CHAT, n, min_tokens=39)) for n in range(6)]
    statuses = [told.status for told in await asyncio.gather(*asked)]
    assert sorted(statuses) == [200, 200, 200, 200, 429, 429]


async def ask(client: ClientSession, url: str, body: dict[str, Any]) -> Told:
    """One request, read to its end."""
    async with client.post(url, json=body) as answer:
        return await read(answer)


async def ready(client: ClientSession, url: str) -> None:
    """Returns when both replicas are."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with client.get(f"{url}/ready") as answer:
                replicas = (await answer.json())["replicas"]
                if all(replica["stage"] == "ready" for replica in replicas):
                    return
            await asyncio.sleep(0.05)


@dataclass(frozen=True)
class Running:
    """A process of ours and where it listens."""

    process: asyncio.subprocess.Process
    url: str

    async def end(self) -> None:
        """Stops it, if it has not ended yet."""
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        await self.process.wait()


@contextlib.asynccontextmanager
async def started(
    *arguments: str, environment: dict[str, str] | None = None
) -> AsyncIterator[Running]:
    """`tunan ARGUMENTS`, which says on its first line where it listens."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tunan", *arguments),
        stderr=subprocess.PIPE,
        env=os.environ | (environment or {}),
    )
    assert process.stderr
    line = (await process.stderr.readline()).decode()
    found = re.search(r"http://127\.0\.0\.1:\d+", line)
    assert found, line
    running = Running(process, found[0])
    try:
        yield running
    finally:
        await running.end()


@contextlib.asynccontextmanager
async def serving(folder: Path, jobs: dict[str, str]) -> AsyncIterator[str]:
    """A Prometheus with the shipped configuration, but faster and with these targets."""
    shipped = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
    shipped["global"] = {"scrape_interval": EVERY, "evaluation_interval": EVERY}
    shipped["global"]["scrape_timeout"] = EVERY
    shipped["rule_files"] = [str(PROMETHEUS / name) for name in shipped["rule_files"]]
    for job in shipped["scrape_configs"]:
        url = jobs.get(job["job_name"])
        targets = [url.removeprefix("http://")] if url else []
        job["static_configs"] = [{"targets": targets}]
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(shipped), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    process = await asyncio.create_subprocess_exec(
        program("prometheus"),
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    )
    try:
        yield f"http://{address}"
    finally:
        await Running(process, address).end()


class StartingError(Exception):
    """Prometheus listens and is not ready yet."""


@dataclass(frozen=True)
class Prometheus:
    """The running one."""

    client: ClientSession
    url: str

    async def shows(self, expressions: dict[str, str]) -> None:
        """Returns when each expression has returned something at least once."""
        missing = dict(expressions)
        try:
            async with asyncio.timeout(PATIENCE_S):
                while missing:
                    for name in await self.shown(missing):
                        del missing[name]
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"nothing is shown by {missing}") from None

    async def shown(self, expressions: dict[str, str]) -> set[str]:
        """The names of those that return a figure now."""
        return {name for name, query in expressions.items() if await self._has_figure(query)}

    async def _has_figure(self, query: str) -> bool:
        try:
            answer = await self._get("/api/v1/query", query=query)
        except (ClientConnectorError, StartingError):
            return False
        assert answer["status"] == "success", answer
        return any(not math.isnan(float(one["value"][1])) for one in answer["data"]["result"])

    async def broken_rules(self) -> list[str]:
        """What Prometheus could not evaluate."""
        groups = (await self._get("/api/v1/rules"))["data"]["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        assert len(rules) == len(all_rules())
        return [rule["name"] for rule in rules if rule["health"] != "ok"]

    async def _get(self, path: str, **parameters: str) -> Any:
        async with self.client.get(self.url + path, params=parameters) as answer:
            if answer.status == 503:
                raise StartingError
            return await answer.json()
