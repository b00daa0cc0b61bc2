"""The services of the chaos benchmark: `tunan serve` alone, or `tunan gateway` before two."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.chaos_proxy import FaultyProxy, Mode, faulty_proxy
from benchmarks.chaos_scenario import Event
from tunan.supervisor.control_client import find_services
from tunan.supervisor.process import descendants

TUNAN = (sys.executable, "-m", "tunan")
PATIENCE_S = 300.0
POLL_S = 0.05
UNWELL_S = 1.0  # how long a proxy misbehaves, but a black hole, which lasts until it is noticed
BLACK_HOLE_S = 6.0
NOTICED_S = 20.0
WORKER = b"VLLM::Worker"  # title of a rank's process, where there are several


class ServiceError(Exception):
    """A service did not come up; its log is named."""


@dataclass(frozen=True)
class Child:
    """A process of a service, and the log that it writes."""

    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def check(self) -> None:
        """Raises `ServiceError`, with the last line that it wrote, if it has ended."""
        status = self.process.poll()
        if status is None:
            return
        lines = self.log.read_text("utf-8", "replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "it wrote nothing")
        raise ServiceError(f"{self.log.stem} ended with status {status}: {last.strip()}")


@dataclass
class Service:
    """A front door at `url` before two replicas, and where each of them can be hurt."""

    url: str
    ports: tuple[int, ...]  # of the `tunan serve` processes
    proxies: Sequence[FaultyProxy] = ()
    folder: Path = field(default_factory=Path)
    holder: Callable[[], int] | None = None  # pid of the gateway that has the shared address
    children: Sequence["Child"] = ()
    last_missing: float = 0.0  # time.perf_counter when a replica was last seen not to be ready

    async def stages(self, patience_s: float = 5) -> list[dict[str, Any]]:
        """The replicas as the front door sees them."""
        timeout = aiohttp.ClientTimeout(total=patience_s)
        async with (
            aiohttp.ClientSession(timeout=timeout) as client,
            client.get(f"{self.url}/ready") as answer,
        ):
            replicas: list[dict[str, Any]] = (await answer.json())["replicas"]
            return replicas

    async def until_answered(self) -> float:
        """When `url` next answers (time.perf_counter)."""
        while True:
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                await self.stages(patience_s=POLL_S * 10)
                return time.perf_counter()
            await asyncio.sleep(POLL_S)

    async def until_whole(self, patience_s: float = PATIENCE_S) -> bool:
        """Returns once every replica is ready; False if that takes longer than `patience_s`."""
        end = time.perf_counter() + patience_s
        while time.perf_counter() < end:
            if await self._whole():
                return True
            await asyncio.sleep(POLL_S)
        return False

    async def until_ready(self) -> None:
        """Returns once every replica is ready for the first time.

        Raises `ServiceError` as soon as a process has ended, or after `PATIENCE_S`.
        """
        end = time.perf_counter() + PATIENCE_S
        while not await self._whole():
            for child in self.children:
                child.check()
            if time.perf_counter() > end:
                raise ServiceError(f"the service did not get ready; see {self.folder}/*.log")
            await asyncio.sleep(POLL_S)

    async def watch(self) -> None:
        """Keeps `last_missing` until it is cancelled."""
        while True:
            if not await self._whole():
                self.last_missing = time.perf_counter()
            await asyncio.sleep(POLL_S)

    async def _whole(self) -> bool:
        try:
            return all(one["stage"] == "ready" for one in await self.stages())
        except (aiohttp.ClientError, OSError, KeyError, ValueError):
            return False

    async def inflict(self, event: Event) -> float:
        """Lets the event happen; returns when it began (time.perf_counter), once it is over."""
        number = await self._target(event.replica)
        began = time.perf_counter()
        if event.do == "rollout":
            await self._rollout()
        elif event.process == "gateway" and self.holder:
            os.kill(self.holder(), signal.Signals[event.signal])
        elif event.do == "kill":
            os.kill(self._process(number, event.process), signal.Signals[event.signal])
            await self._until_missing()
        elif event.do == "cut":
            self.proxies[number].cut()
        else:
            self.proxies[number].become(Mode(event.do))
            await asyncio.sleep(BLACK_HOLE_S if event.do == "black_hole" else UNWELL_S)
            self.proxies[number].become(Mode.PASS)
        return began

    async def _until_missing(self) -> None:
        """Until the front door has noticed: what is still unnoticed is not yet back."""
        end = time.perf_counter() + NOTICED_S
        while await self._whole():
            if time.perf_counter() > end:
                raise ServiceError(f"nobody noticed the signal within {NOTICED_S} s")
            await asyncio.sleep(POLL_S)

    async def _target(self, which: str) -> int:
        loads = [one["in_flight"] for one in await self.stages()]
        busiest = loads.index(max(loads))
        return busiest if which == "busiest" else (busiest + 1) % len(loads)

    def _process(self, number: int, kind: str) -> int:
        (running,) = find_services(str(self.ports[0]))
        api: int = running.state["replicas"][number]["pid"]
        if kind == "api":
            return api
        if kind == "worker":
            return next(pid for pid in descendants(api) if WORKER in _command(pid))
        return max(descendants(api), key=_resident)

    async def _rollout(self) -> None:
        words = [*TUNAN, "rollout", str(self.ports[0])]
        process = await asyncio.create_subprocess_exec(
            *words, stdout=asyncio.subprocess.DEVNULL, env=_environment(self.folder)
        )
        if status := await process.wait():
            raise ServiceError(f"`tunan rollout` ended with {status}")


def _model_of_two_ranks(folder: Path) -> Path:
    """A small random Llama: the sample's nine heads cannot be divided by two."""
    from tests.models import write_decided_llama  # torch is loaded with it

    return write_decided_llama(folder / "model")


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _resident(pid: int) -> int:
    """Resident pages: EngineCore holds the model, its helpers do not."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0


@contextlib.asynccontextmanager
async def service(setup: str, model: Path, dtype: str, folder: Path) -> AsyncIterator[Service]:
    """A ready service of one of the setups of `Scenario`; nothing of it is left afterwards.

    `folder` is there, for logs. Raises `ServiceError` if it does not get ready.
    """
    async with contextlib.AsyncExitStack() as stack:
        if setup == "gateway":
            ports = (free_port(), free_port())
            children = [
                stack.enter_context(serving(model, dtype, folder, port, {"count": 1}))
                for port in ports
            ]
            proxies = [await stack.enter_async_context(faulty_proxy(port)) for port in ports]
            door = free_port()
            urls = [proxy.url for proxy in proxies]
            children.append(stack.enter_context(_gateway(folder, door, urls)))
            found = Service(f"http://127.0.0.1:{door}", ports, proxies, folder)
        else:
            counts = {"count": 1, "standby": 1} if setup == "standby" else {"count": 2}
            port, ranks = free_port(), 1
            if setup == "two ranks":
                model, ranks = await asyncio.to_thread(_model_of_two_ranks, folder), 2
            one = serving(model, dtype, folder, port, counts, ranks=ranks)
            children = [stack.enter_context(one)]
            found = Service(f"http://127.0.0.1:{port}", (port,), (), folder)
        found.children = children
        await found.until_ready()
        yield found


@contextlib.contextmanager
def serving(
    model: Path,
    dtype: str,
    folder: Path,
    port: int,
    counts: dict[str, int],
    host: str = "127.0.0.1",
    ranks: int = 1,
) -> Iterator[Child]:
    """A `tunan serve` with so many replicas of so many ranks."""
    deployment = {
        "name": f"chaos-{port}",
        "model": {"path": str(model), "served_model_name": "model", "dtype": dtype}
        | {"max_model_len": 1024},
        "parallel": {"tensor": ranks},
        "memory": {"kv_cache_gib": 0.25},
        "replicas": counts,
        "gateway": {"host": host, "port": port, "resume_sampled": True},
    }
    path = folder / f"{port}.yaml"
    path.write_text(json.dumps(deployment))  # JSON is YAML
    words = [*TUNAN, "serve", "--config", str(path)]
    with running(words, folder, f"serve-{port}") as child:
        yield child


@contextlib.contextmanager
def _gateway(folder: Path, port: int, urls: Sequence[str]) -> Iterator[Child]:
    words = [*TUNAN, "gateway", "--port", str(port), "--resume-sampled"]
    words += [word for url in urls for word in ("--replica", url)]
    with running(words, folder, f"gateway-{port}") as child:
        yield child


@contextlib.contextmanager
def running(words: Sequence[str], folder: Path, name: str) -> Iterator[Child]:
    """A command, which logs to NAME.log; it and all below it are ended afterwards."""
    path = folder / f"{name}.log"
    with path.open("w") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, env=_environment(folder))
    try:
        yield Child(process, path)
    finally:
        below = descendants(process.pid)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        for pid in [process.pid, *below]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def _environment(folder: Path) -> dict[str, str]:
    return os.environ | {"XDG_STATE_HOME": str(folder / "state"), "HF_HUB_OFFLINE": "1"}


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
