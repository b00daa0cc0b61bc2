"""`tunan serve` on a CPU: one front door, one engine, from bind to exit status.

The front door is bound first and answers from then on; the engine is started, warmed up,
watched, and on SIGTERM drained and stopped. There is no restart here: when the engine dies
the service ends with its last error in one line, and whoever runs it (systemd) restarts it.
"""

import asyncio
import contextlib
import shutil
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tunan.config import Deployment
from tunan.errors import OutsideError
from tunan.gateway.app import FrontDoor
from tunan.gateway.keys import ApiKeys
from tunan.gateway.proxy import Proxy
from tunan.gateway.replica import Replica, Stage
from tunan.gateway.server import address_of, bind, serving
from tunan.supervisor.arguments import compiles, engine_arguments
from tunan.supervisor.directories import Directories, runtime_directory
from tunan.supervisor.engine_client import EngineClient
from tunan.supervisor.environment import PROGRESS_SOCKET, engine_environment
from tunan.supervisor.last_error import root_cause_in
from tunan.supervisor.log_file import fresh_log, tail_to_stderr
from tunan.supervisor.machine import look
from tunan.supervisor.model_size import measure
from tunan.supervisor.process import EngineProcess
from tunan.supervisor.progress import listening
from tunan.supervisor.report import Report
from tunan.supervisor.warmup import ANSWER_TOKENS, warm_up

POLL_S = 0.05
DEATH_GRACE_S = 1.0  # for the API server to write why its engine died
DEFAULT_BATCHED_TOKENS = 2048  # vLLM's default for its API server on a CPU, a rank


@dataclass(frozen=True)
class Options:
    """How this run of the service behaves, beside the deployment."""

    verbose: bool = False
    as_json: bool = False
    directories: Directories = field(default_factory=Directories.of_user)


class Stop:
    """SIGTERM and SIGINT: the first asks to drain, the second to end at once."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()
        self.signal = signal.SIGTERM

    def install(self) -> None:
        """Takes both signals over on the running loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._heard, number)

    def _heard(self, number: signal.Signals) -> None:
        (self.insisted if self.asked.is_set() else self.asked).set()
        self.signal = number


def serve(deployment: Deployment, options: Options) -> int:
    """Serves until told to stop: 0 after a drain. Raises `UsageError` or `OutsideError`."""
    return asyncio.run(_serve(deployment, options))


async def _serve(deployment: Deployment, options: Options) -> int:
    report = Report(options.as_json)
    gateway = deployment.gateway
    keys = ApiKeys.read(gateway.api_keys_file) if gateway.api_keys_file else None
    size = measure(deployment.model.path, deployment.model.dtype)
    listener = bind(gateway.host, gateway.port)
    runtime = runtime_directory()
    try:
        replica = Replica(runtime / "engine.sock")
        machine = look()
        arguments = engine_arguments(machine, deployment, size, replica.socket)
        environment = engine_environment(machine, deployment, options.directories)
        environment[PROGRESS_SOCKET] = str(runtime / "progress.sock")
        environment["TMPDIR"] = str(runtime)  # vLLM leaves sockets and files there
        stop = Stop()
        stop.install()
        address = address_of(listener)
        log = fresh_log(options.directories.state, deployment.name, listener.getsockname()[1])
        report.event(
            "starting",
            f"tunan: starting {deployment.served_model_name}; log: {log}",
            model=deployment.served_model_name,
            address=address,
            log=str(log),
        )
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(
                listening(
                    runtime / "progress.sock",
                    partial(_loading, replica, report, compiles(deployment)),
                )
            )
            engine = await EngineProcess.start(arguments, environment, log)
            stack.push_async_callback(engine.kill)
            if options.verbose:
                await stack.enter_async_context(tail_to_stderr(log))
            proxy = await stack.enter_async_context(
                Proxy(replica, int(gateway.max_body_mib * (1 << 20)))
            )
            await stack.enter_async_context(serving(FrontDoor(replica, proxy, keys), listener))
            service = _Service(deployment, replica, engine, report, stop, log, address)
            return await service.run()
    finally:
        listener.close()
        shutil.rmtree(runtime, ignore_errors=True)


def _loading(replica: Replica, report: Report, then_compiles: bool, done: int, total: int) -> None:
    if replica.stage not in (Stage.STARTING, Stage.LOADING):
        return
    replica.move(Stage.LOADING, done, total)
    report.progress("loading", replica.describe(), done, total)
    if done == total and then_compiles:
        replica.move(Stage.COMPILING)
        report.progress("compiling", replica.describe(), 0, 1)


@dataclass
class _Service:
    deployment: Deployment
    replica: Replica
    engine: EngineProcess
    report: Report
    stop: Stop
    log: Path
    address: str

    async def run(self) -> int:
        """From a started engine to the exit status."""
        async with self._events() as (died, asked):
            warm = asyncio.create_task(self._warm_up())
            await asyncio.wait({warm, died, asked}, return_when=asyncio.FIRST_COMPLETED)
            if not warm.done():
                warm.cancel()
            elif not died.done() and not asked.done():
                if problem := warm.exception():
                    # The engine's own death explains more than the request it broke.
                    await asyncio.wait({died}, timeout=DEATH_GRACE_S)
                    if not died.done():
                        raise problem
                else:
                    self._announce()
                    await asyncio.wait({died, asked}, return_when=asyncio.FIRST_COMPLETED)
            if died.done() and not asked.done():
                await self._fail(died.result())
            return await self._drain(died)

    @contextlib.asynccontextmanager
    async def _events(self) -> AsyncIterator[tuple[asyncio.Task[str], asyncio.Task[bool]]]:
        died = asyncio.create_task(self.engine.died())
        asked = asyncio.create_task(self.stop.asked.wait())
        try:
            yield died, asked
        finally:
            died.cancel()
            asked.cancel()

    async def _warm_up(self) -> None:
        async with EngineClient(self.replica.socket) as client:
            while not await client.alive():  # noqa: ASYNC110  # another process's socket
                await asyncio.sleep(POLL_S)
            self.engine.watch_descendants()
            longest = min(
                self.deployment.scheduler.max_num_batched_tokens or DEFAULT_BATCHED_TOKENS,
                await client.max_model_len() - ANSWER_TOKENS,
            )
            model = self.deployment.served_model_name
            await warm_up(
                lambda prompt: client.complete(model, prompt),
                self.deployment.warmup.requests,
                longest,
                self._warming,
            )

    def _warming(self, done: int, total: int) -> None:
        self.replica.move(Stage.WARMING, done, total)
        self.report.progress("warming", self.replica.describe(), done, total)

    def _announce(self) -> None:
        self.replica.move(Stage.READY)
        model = self.deployment.served_model_name
        url = self.address
        request = f'{{"model":"{model}","messages":[{{"role":"user","content":"Hello"}}]}}'
        key = " -H 'Authorization: Bearer KEY'" if self.deployment.gateway.api_keys_file else ""
        self.report.event(
            "ready",
            f"tunan: ready: {model} at {url}\n"
            f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} "
            f"-d '{request}'",
            model=model,
            address=url,
        )

    async def _fail(self, what: str) -> None:
        """Answers 503 from here on, and raises with the engine's last error in one line."""
        self.replica.move(Stage.FAILED, problem="the engine died")
        status = await self.engine.exit_status(DEATH_GRACE_S)
        cause = root_cause_in(self.log) or _how_it_ended(what, status)
        self.report.event("failed", f"tunan: {what}", what=what, cause=cause)
        raise OutsideError(f"the engine died: {cause}; its log is {self.log}")

    async def _drain(self, died: asyncio.Task[str]) -> int:
        """Lets running requests finish, then stops the engine."""
        self.replica.move(Stage.DRAINING)
        limit = self.deployment.gateway.shutdown_timeout_s
        if self.replica.in_flight:
            self.report.event(
                "draining",
                f"tunan: draining {self.replica.in_flight} requests, at most {limit:g} s "
                "(interrupt again to end at once)",
                in_flight=self.replica.in_flight,
            )
        empty = asyncio.create_task(self.replica.empty())
        insisted = asyncio.create_task(self.stop.insisted.wait())
        await asyncio.wait(
            {empty, insisted, died}, timeout=limit, return_when=asyncio.FIRST_COMPLETED
        )
        empty.cancel()
        cut = self.replica.in_flight
        if not cut and not insisted.done():
            stopped = asyncio.create_task(self.engine.stop())
            await asyncio.wait({stopped, insisted}, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
        insisted.cancel()
        # Streams still running have had their time; `kill` also ends what a hung stop left.
        await self.engine.kill()
        if self.stop.insisted.is_set():
            return 128 + self.stop.signal
        suffix = f"; {cut} requests were cut after {limit:g} s" if cut else ""
        self.report.event("stopped", f"tunan: stopped{suffix}", cut=cut)
        return 0


def _how_it_ended(what: str, status: int | None) -> str:
    if status is not None and status < 0:
        name = signal.Signals(-status).name
        memory = ", perhaps for lack of memory" if name == "SIGKILL" else ""
        return f"{what} by signal {name}{memory}"
    return what if status is None else f"{what} with status {status}"
