"""One replica's life: run after run of its engine, until it is told to stop or fails for good."""

import asyncio
import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tunan.config import Deployment
from tunan.errors import CheckFailedError, OutsideError, TunanError
from tunan.gateway.replica import Replica, Stage
from tunan.supervisor.device_memory import IsFree, always_free, wait_until_free
from tunan.supervisor.engine_run import Drained, EngineRun, Failure
from tunan.supervisor.failures import Failures
from tunan.supervisor.healing import Healed, Healing
from tunan.supervisor.launch import ENGINE_SOCKET, Launch, Relaunch
from tunan.supervisor.log_file import kept_small, start_afresh, tail_to_stderr
from tunan.supervisor.orders import Orders
from tunan.supervisor.process import EngineProcess
from tunan.supervisor.progress import listening
from tunan.supervisor.report import About


@dataclass(frozen=True)
class Plan:
    """What one replica is started with; `directory` is for its sockets and files.

    `relaunch` plans a start with other settings, None if these are the only ones.
    """

    deployment: Deployment
    launch: Launch
    directory: Path
    log: Path
    verbose: bool = False
    memory_is_free: IsFree = always_free
    relaunch: Relaunch | None = None

    @property
    def socket(self) -> Path:
        """Where its engine listens."""
        return self.directory / ENGINE_SOCKET


@dataclass
class Life:
    """Starts, restarts and ends the engine behind `replica`.

    `may_retry` says whether a start that never became ready is tried again. `on_failed` is
    called when it stays down, and says whether the service goes on; `problem` says why then.
    """

    plan: Plan
    replica: Replica
    orders: Orders
    report: About
    may_retry: Callable[[], bool]
    on_failed: Callable[["Life"], bool]
    starts: int = field(default=0, init=False)
    problem: TunanError | None = field(default=None, init=False)
    pid: int | None = field(default=None, init=False)
    _failures: Failures = field(init=False)
    _healing: Healing | None = field(init=False)
    _release_s: float = field(default=0, init=False)
    _waiting: list[asyncio.Future[None]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        restart, relaunch = self.plan.deployment.replicas.restart, self.plan.relaunch
        self._failures = Failures(restart)
        self._healing = Healing(relaunch) if relaunch and restart.heal else None

    @property
    def failures(self) -> int:
        """Failures in a row so far."""
        return self._failures.in_a_row

    async def live(self) -> int:
        """Runs the engine until told to stop; returns how many requests were cut then."""
        over: Failure | Drained | None = None
        while True:
            if self.orders.asked.is_set():
                if not self.orders.renewing:
                    self._tell_next(CheckFailedError("the service was told to stop"))
                    return over.cut if isinstance(over, Drained) else 0
                self.orders.obeyed()
                self._failures.forget()
            if over:
                await self._until_device_is_free()
                if self.orders.asked.is_set():
                    continue
                self.problem = None
                self.replica.restart()
            over = await self._run()
            if isinstance(over, Failure):
                await self._until_next_start(over)

    async def renew(self) -> None:
        """Drains the engine, starts it again and returns once it is ready.

        Raises the `TunanError` of a start that failed.
        """
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(ready)
        self.orders.renew()
        await ready

    async def _run(self) -> Failure | Drained:
        plan, report = self.plan, self.report
        async with contextlib.AsyncExitStack() as stack:
            try:
                shutil.rmtree(plan.directory, ignore_errors=True)
                plan.directory.mkdir(mode=0o700)
                log = start_afresh(plan.log)
                loading = partial(_loading, self.replica, report, plan.launch.compiles)
                await stack.enter_async_context(
                    listening(plan.directory / "progress.sock", loading)
                )
                engine = await EngineProcess.start(
                    plan.launch.arguments, plan.launch.environment, log
                )
            except (OSError, OutsideError) as error:
                return _not_started(error)
            self.starts, self.pid = self.starts + 1, engine.pid
            stack.callback(self._forget_process)
            stack.push_async_callback(engine.kill)
            await stack.enter_async_context(kept_small(log))
            if plan.verbose:
                await stack.enter_async_context(tail_to_stderr(log))
            run = EngineRun(
                plan.deployment,
                self.replica,
                engine,
                plan.socket,
                self.orders,
                report,
                log,
                self._ready,
                plan.launch.compiles,
            )
            over = await run.until_over()
            if engine.left:
                self._tell_of_left(engine.left)
            return over

    def _tell_of_left(self, pids: tuple[int, ...]) -> None:
        which = ", ".join(map(str, pids))
        self.report.event(
            "stuck",
            f"processes of its engine do not end, though killed: {which}; they hang in a driver, "
            "and what they hold is free when they end, or after a restart of the machine",
            pids=list(pids),
        )

    def _forget_process(self) -> None:
        self.pid = None

    def _ready(self) -> None:
        if not self.orders.asked.is_set():
            self._tell_next(None)

    def _tell_next(self, problem: TunanError | None) -> None:
        for waiting in self._waiting:
            if waiting.done():
                continue
            if problem is None:
                waiting.set_result(None)
            else:
                waiting.set_exception(problem)
        self._waiting.clear()

    async def _until_next_start(self, failure: Failure) -> None:
        """Returns when it is time to start again, or it is told something."""
        self.replica.lose(failure.what)
        if self.orders.asked.is_set():
            return  # it is the next start, or the end, that whoever asked waits for
        self._tell_next(failure.problem)
        wait = None if failure.hopeless else self._failures.add(failure.ready_s)
        healed = None if wait is None else await self._heal(failure)
        if wait is None or not (healed or failure.ready_s is not None or self.may_retry()):
            self._give_up(failure)
            await self.orders.asked.wait()
            return
        self.report.event(
            "restarting",
            f"{failure.problem}; starting it again in {wait:g} s",
            what=failure.what,
            cause=failure.cause,
            failures=self.failures,
            wait_s=wait,
        )
        if healed:
            self._tell_of_remedy(healed)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self.orders.asked.wait()

    async def _heal(self, failure: Failure) -> Healed | None:
        """Changes what is started next, if a change mends what failed."""
        plan = self.plan
        if self._healing is None or not failure.in_log:
            return None
        healed = await asyncio.to_thread(
            self._healing.after, plan.log, plan.deployment, plan.launch
        )
        if healed:
            self.plan = replace(plan, deployment=healed.remedy.deployment, launch=healed.launch)
            self._release_s = healed.remedy.wait_s
        return healed

    def _tell_of_remedy(self, healed: Healed) -> None:
        remedy = healed.remedy
        self.report.event(
            "remedy",
            f"remedy for {healed.cause}: {remedy.what}",
            error=healed.cause,
            remedy=remedy.kind,
            what=remedy.what,
        )

    async def _until_device_is_free(self) -> None:
        """Returns when it is, when it has been waited for long enough, or it is told something."""
        limit = max(self.plan.deployment.replicas.restart.device_free_s, self._release_s)
        self._release_s = 0
        free = asyncio.create_task(wait_until_free(self.plan.memory_is_free, limit))
        asked = asyncio.create_task(self.orders.asked.wait())
        await asyncio.wait({free, asked}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if not free.done():
            free.cancel()
        elif not free.result():
            self.report.event(
                "device_busy",
                f"the device's memory is still taken after {limit:g} s; starting nevertheless",
            )

    def _give_up(self, failure: Failure) -> None:
        self.problem = failure.problem
        if self.failures > 1:
            self.problem = type(failure.problem)(
                f"{failure.problem}; it failed {self.failures} times in a row"
            )
        self.replica.move(Stage.FAILED, problem="the engine died")
        goes_on = self.on_failed(self)  # else `serve` ends, and says why
        told = f"{self.problem}; it stays down until `tunan rollout`" if goes_on else ""
        self.report.event(
            "failed", told, what=failure.what, cause=failure.cause, failures=self.failures
        )


def _loading(replica: Replica, report: About, then_compiles: bool, done: int, total: int) -> None:
    if replica.stage not in (Stage.STARTING, Stage.LOADING):
        return
    replica.move(Stage.LOADING, done, total)
    report.progress("loading", replica.describe(), done, total)
    if done == total and then_compiles:
        replica.move(Stage.COMPILING)
        report.progress("compiling", replica.describe(), 0, 1)


def _not_started(error: OSError | OutsideError) -> Failure:
    if isinstance(error, OutsideError):
        return Failure(error, "it could not be started", str(error))
    cause = error.strerror or str(error)
    problem = OutsideError(f"the engine could not be started: {cause}")
    return Failure(problem, "it could not be started", cause)
