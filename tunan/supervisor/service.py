"""`tunan serve`: one front door, one engine, from bind to exit status.

The front door is bound first and answers from then on; the engine is started, warmed up,
watched, and on SIGTERM drained and stopped. There is no restart here: when the engine dies
the service ends with its last error in one line, and whoever runs it (systemd) restarts it.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tunan.ascend.emulated import EmulatedDevices
from tunan.config import Deployment
from tunan.errors import OutsideError, UsageError
from tunan.gateway.app import FrontDoor
from tunan.gateway.keys import ApiKeys
from tunan.gateway.proxy import Proxy
from tunan.gateway.replica import Replica, Stage
from tunan.gateway.server import address_of, bind, serving
from tunan.supervisor.directories import Directories, runtime_directory
from tunan.supervisor.engine_client import EngineClient
from tunan.supervisor.fatal import until_fatal
from tunan.supervisor.last_error import root_cause_in, usage_error_in
from tunan.supervisor.launch import DEFAULT_BATCHED_TOKENS, ENGINE_SOCKET, plan_launch
from tunan.supervisor.log_file import fresh_log, tail_to_stderr
from tunan.supervisor.model_size import check_blocks, measure
from tunan.supervisor.next_step import with_next_step
from tunan.supervisor.process import STOP_TIMEOUT_S, Ending, EngineProcess
from tunan.supervisor.progress import listening
from tunan.supervisor.report import Report
from tunan.supervisor.warmup import ANSWER_TOKENS, warm_up

POLL_S = 0.05
PROGRESS_POLL_S = 1.0
DEATH_GRACE_S = 1.0  # for the API server to write why its engine died
FATAL_GRACE_S = 6.0  # for a process that cannot go on to end by itself
# An engine that starts has no work to lose, and may be deaf in one long call (touching a large KV
# cache): it only gets the time to remove its shared memory.
STARTING_STOP_S = 1.0
CUT_STREAMS_S = 2.0  # for the front door to tell running streams that the engine is gone
USAGE_STATUS = 2  # argparse's
NOT_ENDING = "a process of the engine that hung after a fatal error"


@dataclass(frozen=True)
class Options:
    """How this run of the service behaves, beside the deployment."""

    target: str = "cpu"
    emulated: EmulatedDevices | None = None
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
    stop = Stop()
    stop.install()
    keys = ApiKeys.read(gateway.api_keys_file) if gateway.api_keys_file else None
    check_blocks(deployment.model.path, deployment.parallel.tensor)
    size = measure(deployment.model.path, deployment.model.dtype)
    with (
        contextlib.closing(bind(gateway.host, gateway.port)) as listener,
        runtime_directory() as runtime,
    ):
        replica = Replica(runtime / ENGINE_SOCKET)
        launch = plan_launch(
            deployment, options.target, size, runtime, options.directories, options.emulated
        )
        address = address_of(listener)
        log = fresh_log(options.directories.state, deployment.name, listener.getsockname()[1])
        report.event(
            "starting",
            f"tunan: starting {deployment.served_model_name} on {launch.device}; log: {log}",
            model=deployment.served_model_name,
            device=launch.device,
            address=address,
            log=str(log),
        )
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(
                listening(
                    runtime / "progress.sock",
                    partial(_loading, replica, report, launch.compiles),
                )
            )
            engine = await EngineProcess.start(launch.arguments, launch.environment, log)
            stack.push_async_callback(engine.kill)
            if options.verbose:
                await stack.enter_async_context(tail_to_stderr(log))
            proxy = await stack.enter_async_context(
                Proxy(replica, int(gateway.max_body_mib * (1 << 20)))
            )
            await stack.enter_async_context(serving(FrontDoor(replica, proxy, keys), listener))
            service = _Service(deployment, replica, engine, report, stop, log, address)
            return await service.run()


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
            await self._until_warm(warm, died, asked)
            problem = warm.exception() if warm.done() else None
            if not warm.done():
                warm.cancel()
            elif not died.done() and not asked.done():
                if problem:
                    # The engine's own death explains more than the request it broke.
                    await asyncio.wait({died}, timeout=FATAL_GRACE_S + DEATH_GRACE_S)
                    if not died.done():
                        raise problem
                else:
                    self._announce()
                    await asyncio.wait({died, asked}, return_when=asyncio.FIRST_COMPLETED)
            if died.done() and not asked.done():
                await self._fail(died.result())
            return await self._drain(died)

    @contextlib.asynccontextmanager
    async def _events(self) -> AsyncIterator[tuple[asyncio.Task[Ending], asyncio.Task[bool]]]:
        died = asyncio.create_task(self._died())
        asked = asyncio.create_task(self.stop.asked.wait())
        try:
            yield died, asked
        finally:
            died.cancel()
            asked.cancel()

    async def _died(self) -> Ending:
        """Returns once a process of the engine has ended, or has said that it cannot go on."""
        ended = asyncio.create_task(self.engine.died())
        fatal = asyncio.create_task(until_fatal(self.log))
        try:
            await asyncio.wait({ended, fatal}, return_when=asyncio.FIRST_COMPLETED)
            # A log that cannot be opened says nothing of the engine.
            deaf = fatal.done() and fatal.exception() is not None
            await asyncio.wait({ended}, timeout=None if deaf else FATAL_GRACE_S)
        finally:
            ended.cancel()
            fatal.cancel()
        return ended.result() if ended.done() and not ended.cancelled() else Ending(NOT_ENDING)

    async def _until_warm(
        self, warm: asyncio.Task[None], died: asyncio.Task[Ending], asked: asyncio.Task[bool]
    ) -> None:
        """Returns once one of them is done. Raises `OutsideError` if the start stands still."""
        limit = self.deployment.gateway.startup_timeout_s
        where, since = self.replica.progress, time.monotonic()
        while True:
            done, _ = await asyncio.wait(
                {warm, died, asked},
                timeout=min(limit, PROGRESS_POLL_S),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if done:
                return
            if self.replica.progress != where:
                where, since = self.replica.progress, time.monotonic()
            elif time.monotonic() - since >= limit:
                warm.cancel()
                raise OutsideError(self._stands_still(limit))

    def _stands_still(self, limit: float) -> str:
        cause = root_cause_in(self.log)
        return (
            f"the engine has stood at '{self.replica.describe()}' for {limit:g} s"
            + (f", after: {with_next_step(cause)}" if cause else "")
            + f"; see its log {self.log}; if it only needs longer, raise gateway.startup_timeout_s"
        )

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

    async def _fail(self, ending: Ending) -> None:
        """Answers 503 from here on, and raises with the engine's last error in one line."""
        self.replica.move(Stage.FAILED, problem="the engine died")
        status = await self.engine.exit_status(DEATH_GRACE_S)
        # First the engine, then the front door: so running streams are told why they end.
        await self.engine.kill()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.replica.empty(), CUT_STREAMS_S)
        if status == USAGE_STATUS and (refused := usage_error_in(self.log)):
            self.report.event("failed", what=ending.describe(), cause=refused)
            raise UsageError(f"the engine refuses a flag given after `--`: {refused}")
        cause = root_cause_in(self.log, killed=ending.killed) or ending.describe()
        self.report.event("failed", what=ending.describe(), cause=cause)
        raise OutsideError(f"the engine died: {with_next_step(cause)}; its log is {self.log}")

    async def _drain(self, died: asyncio.Task[Ending]) -> int:
        """Lets running requests finish, then stops the engine."""
        was_ready = self.replica.stage is Stage.READY
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
            stopped = asyncio.create_task(
                self.engine.stop(STOP_TIMEOUT_S if was_ready else STARTING_STOP_S)
            )
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
