"""Several `tunan gateway` as processes that share an address; a real etcd."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.gateway.electing import hook, runs, until
from tests.gateway.etcd_server import EtcdServer, etcd_server
from tests.gateway.fake_engine import FakeEngine, fake_engine
from tunan.cli.main import main

PROGRAM = (sys.executable, "-m", "tunan", "gateway")
ADMIN = "an-admin-key-of-length"


@dataclass
class Running:
    """One gateway, where it listens, what it told, who asks it."""

    process: asyncio.subprocess.Process
    url: str
    client: ClientSession
    told: list[str] = field(default_factory=list)

    async def get(self, path: str) -> Any:
        """As the administrator."""
        headers = {"Authorization": f"Bearer {ADMIN}"}
        async with self.client.get(self.url + path, headers=headers) as answer:
            assert answer.status == 200
            return await (answer.json() if path.startswith("/admin") else answer.text())

    async def holds(self, whether: bool = True) -> None:
        """Returns once it does, or does not."""
        async with asyncio.timeout(90):
            while (await self.get("/admin/holder"))["holding"] is not whether:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def listen(self) -> None:
        """Notes what it tells, to the end."""
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.told.append(line.decode().strip())


@contextlib.asynccontextmanager
async def gateway(
    name: str, folder: Path, etcd: EtcdServer, engine: FakeEngine, **more: Any
) -> AsyncIterator[Running]:
    """A process that takes part; its hook notes what it is told in `folder`."""
    (folder / "admin").write_text(ADMIN)
    election = {"endpoints": [etcd.url], "name": name, "hook": hook(folder), "lease_s": 4}
    election |= {"hook_timeout_s": 60, **more}
    content = {
        "model": {"path": "."},
        "replicas": [{"url": engine.url}],
        "gateway": {"port": 0, "admin_keys_file": str(folder / "admin"), "etcd": election},
    }
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps(content))
    process = await asyncio.create_subprocess_exec(
        *PROGRAM, "--config", str(file), stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    line = (await process.stderr.readline()).decode()
    async with ClientSession() as client:
        found = Running(process, line.split("gateway at ")[1].split(";")[0], client)
        listening = asyncio.create_task(found.listen())
        try:
            await until_ready(found)
            yield found
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.terminate()
            await process.wait()
            await listening


@contextlib.asynccontextmanager
async def pair(folder: Path, **more: Any) -> AsyncIterator[tuple[Running, Running, FakeEngine]]:
    """The gateway that holds the address, the one that would be next, and their engine."""
    async with (
        etcd_server(folder) as etcd,
        fake_engine() as engine,
        gateway("a", folder, etcd, engine, **more) as first,
    ):
        await first.holds()
        async with gateway("b", folder, etcd, engine, **more) as second:
            await until(lambda: "b release" in runs(folder))
            yield first, second, engine


async def until_ready(running: Running) -> None:
    async with asyncio.timeout(90):
        while True:
            async with running.client.get(f"{running.url}/ready") as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.02)


async def test_when_the_holder_is_killed_the_address_leaves_it_and_the_next_holds(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as (first, second, _):
        first.process.kill()
        await second.holds()
        await until(lambda: "tunan: the gateway is gone; hook release: done" in first.told)
        assert runs(tmp_path)[-2:] == ["a release", "b acquire"]
        metrics = await second.get("/metrics")
        assert "tunan_gateway_takeovers_total 0.0" not in metrics


async def test_after_a_kill_the_next_holds_without_waiting_for_the_lease(tmp_path: Path) -> None:
    """Which lasts a minute here; the process of the hook gives it back after the address."""
    async with pair(tmp_path, lease_s=60) as (first, second, _):
        first.process.kill()
        async with asyncio.timeout(30):
            await second.holds()
        assert runs(tmp_path)[-2:] == ["a release", "b acquire"]
        given = "tunan: the gateway is gone; its lease is given back to etcd"
        await until(lambda: given in first.told)


async def test_a_holder_that_was_stopped_and_goes_on_does_not_believe_that_it_holds(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as (first, second, _):
        first.process.send_signal(signal.SIGSTOP)
        await second.holds()
        # It was released while the gateway stood still, before the next acquired.
        assert runs(tmp_path)[-2:] == ["a release", "b acquire"]
        first.process.send_signal(signal.SIGCONT)
        assert (await first.get("/admin/holder"))["holding"] is False
        metrics = await first.get("/metrics")
        assert "tunan_gateway_holder 0.0" in metrics
        await until(lambda: any("not renewed in time" in line for line in first.told))


async def test_sigterm_gives_the_address_away_before_running_requests_end(tmp_path: Path) -> None:
    async with (
        etcd_server(tmp_path) as etcd,
        fake_engine() as engine,
        gateway("a", tmp_path, etcd, engine, lease_s=60) as first,
    ):
        await first.holds()
        async with gateway("b", tmp_path, etcd, engine, lease_s=60) as second:
            engine.gap_s, engine.eos = 0.05, False
            body = {"model": "fake", "prompt": "x", "stream": True, "max_tokens": 100}
            body |= {"temperature": 0}
            async with first.client.post(f"{first.url}/v1/completions", json=body) as answer:
                await answer.content.readany()
                first.process.terminate()
                await second.holds()
                assert first.process.returncode is None
                assert (await answer.content.read()).endswith(b"data: [DONE]\n\n")
            assert await first.process.wait() == 0
            await until(lambda: "tunan: stopped" in first.told)
            assert (
                "tunan: a does not hold the shared address any more: this gateway stops"
                in first.told
            )


async def test_requests_are_answered_while_etcd_is_away(tmp_path: Path) -> None:
    async with (
        etcd_server(tmp_path) as etcd,
        fake_engine() as engine,
        gateway("a", tmp_path, etcd, engine) as alone,
    ):
        await alone.holds()
        await etcd.kill()
        await alone.holds(False)
        async with alone.client.get(f"{alone.url}/ready") as answer:
            assert answer.status == 200
        metrics = await alone.get("/metrics")
        assert "tunan_gateway_etcd_up 0.0" in metrics
        assert 'tunan_gateway_stand_downs_total{reason="lease"} 0.0' not in metrics
        body = {"model": "fake", "prompt": "x", "max_tokens": 3, "temperature": 0}
        async with alone.client.post(f"{alone.url}/v1/completions", json=body) as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--etcd", "h:2379"), "must be http://HOST:PORT or https://HOST:PORT"),
        (("--etcd-hook", "true"), "hook means nothing without endpoints"),
        (("--etcd", "http://h:1", "--etcd-hook", "/no/such x"), "no program /no/such"),
        (("--etcd", "http://h:1", "--etcd-hook", "'"), "--etcd-hook ': No closing quotation"),
    ],
)
def test_wrong_use_is_one_line(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    assert main(["gateway", "--replica", "http://h:1", "--port", "0", *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
