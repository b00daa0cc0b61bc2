"""One run of one replica's engine: from a started process over warm-up to its end."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from tunan.config import Deployment
from tunan.errors import OutsideError, TunanError, UsageError
from tunan.gateway.replica import Replica, Stage
from tunan.supervisor.engine_client import EngineClient
from tunan.supervisor.fatal import until_fatal
from tunan.supervisor.last_error import root_cause_in, usage_error_in
from tunan.supervisor.launch import DEFAULT_BATCHED_TOKENS
from tunan.supervisor.next_step import with_next_step
from tunan.supervisor.orders import Orders
from tunan.supervisor.process import STOP_TIMEOUT_S, Ending, EngineProcess
from tunan.supervisor.report import About
from tunan.supervisor.warmup import ANSWER_TOKENS, warm_up

POLL_S = 0.05
PROGRESS_POLL_S = 1.0
DEATH_GRACE_S = 1.0  # for the API server to write why its engine died
FATAL_GRACE_S = 6.0  # for a process that cannot go on to end by itself
# An engine that starts has no work to lose, and may be deaf in one long call (touching a large KV
# cache): it only gets the time to remove its shared memory.
STARTING_STOP_S = 1.0
USAGE_STATUS = 2  # argparse's
NOT_ENDING = "a process of the engine hung after a fatal error"
STOPPED_POLL_S = 0.1
STOPPED_S = 0.5  # one that is stopped for less is only slowed down, as by `cpulimit`
RENEWED = "it is being restarted by `tunan rollout`"


@dataclass(frozen=True)
class Failure:
    """The engine ended by itself, or never came up. `problem` is the whole line for the user.

    `ready_s`: how long it had been ready, None if it never was. `hopeless`: a restart cannot help.
    `in_log`: its log may say why.
    """

    problem: TunanError
    what: str
    cause: str
    ready_s: float | None = None
    hopeless: bool = False
    in_log: bool = False


@dataclass(frozen=True)
class Drained:
    """The engine was told to end. `cut`: requests that could not finish."""

    cut: int = 0


@dataclass
class EngineRun:
    """Warms up `engine`, behind `socket`, watches it and drains it; `replica` shows how far it is.

    `on_ready` is called once, when it may serve. `compiles`: it compiles for each prompt length.
    """

    deployment: Deployment
    replica: Replica
    engine: EngineProcess
    socket: Path
    orders: Orders
    report: About
    log: Path
    on_ready: Callable[[], None]
    compiles: bool
    _ready_at: float | None = field(default=None, init=False)
    _lost: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def until_over(self) -> Failure | Drained:
        """From a started engine to its end; then no process of it is left."""
        async with self._events() as (died, asked):
            failure = await self._start(died, asked)
            if not (failure or died.done() or asked.done()):
                if not self._lost.is_set():
                    self._ready_at = time.monotonic()
                    self.replica.move(Stage.READY)
                    self.on_ready()
                await asyncio.wait({died, asked}, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return await self._drain(died)
            if failure:
                await self.engine.kill()
                return failure
            return await self._explain(died.result())

    @contextlib.asynccontextmanager
    async def _events(self) -> AsyncIterator[tuple[asyncio.Task[Ending], asyncio.Task[bool]]]:
        self.replica.on_lost.append(self._hear_of_loss)
        died = asyncio.create_task(self._died())
        asked = asyncio.create_task(self.orders.asked.wait())
        stops = asyncio.create_task(self._watch_stops())
        try:
            yield died, asked
        finally:
            for task in (died, asked, stops):
                task.cancel()
            self.replica.on_lost.remove(self._hear_of_loss)

    def _hear_of_loss(self, _replica: Replica, _reason: str) -> None:
        self._lost.set()

    async def _watch_stops(self) -> None:
        """Tells `replica` of processes that a signal has stopped: nothing else shows it as soon."""
        looks = round(STOPPED_S / STOPPED_POLL_S)
        seen: list[str] = []
        while True:
            await asyncio.sleep(STOPPED_POLL_S)
            seen = [*seen, self.engine.stopped()][-looks:]
            frozen = seen[-1] if len(seen) == looks and all(seen) else ""
            if bool(frozen) != bool(self.replica.frozen):
                self.replica.freeze(frozen, asyncio.get_running_loop().time())

    async def _died(self) -> Ending:
        """Returns once the engine cannot go on; `replica` is lost from the first sign of it.

        The signs: a process of it has ended, it has logged that it cannot go on, or the gateway
        has lost it. Then it gets a moment to end by itself, which says most of the cause.
        """
        ended = asyncio.create_task(self.engine.died())
        fatal = asyncio.create_task(until_fatal(self.log))
        lost = asyncio.create_task(self._lost.wait())
        try:
            await asyncio.wait({ended, fatal, lost}, return_when=asyncio.FIRST_COMPLETED)
            if fatal.done() and fatal.exception():
                # A log that cannot be opened says nothing of the engine.
                await asyncio.wait({ended, lost}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                self.replica.lose(ended.result().describe())
                return ended.result()
            reason = self.replica.problem if lost.done() else ""
            self.replica.lose("it has logged that it cannot go on")
            await asyncio.wait({ended}, timeout=DEATH_GRACE_S if reason else FATAL_GRACE_S)
            return (
                ended.result() if ended.done() else Ending("the engine", words=reason or NOT_ENDING)
            )
        finally:
            for task in (ended, fatal, lost):
                task.cancel()

    async def _start(self, died: asyncio.Task[Ending], asked: asyncio.Task[bool]) -> Failure | None:
        """Returns once it is warm or one of the two is done; what is wrong if that is known."""
        warm = asyncio.create_task(self._warm_up())
        try:
            if not await self._goes_on(warm, died, asked):
                return self._standing_still()
            if died.done() or asked.done():
                return None
            problem = warm.exception()
            if problem is None:
                return None
            # The engine's own death explains more than the request it broke.
            await asyncio.wait({died}, timeout=FATAL_GRACE_S + DEATH_GRACE_S)
            return None if died.done() else _unexplained(problem)
        finally:
            warm.cancel()
            await asyncio.gather(warm, return_exceptions=True)

    async def _goes_on(
        self,
        warm: asyncio.Task[None],
        died: asyncio.Task[Ending],
        asked: asyncio.Task[bool],
    ) -> bool:
        """True once one of them is done, False if the start stands still."""
        limit = self.deployment.gateway.startup_timeout_s
        where, since = self.replica.progress, time.monotonic()
        while True:
            done, _ = await asyncio.wait(
                {warm, died, asked},
                timeout=min(limit, PROGRESS_POLL_S),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if done:
                return True
            if self.replica.progress != where:
                where, since = self.replica.progress, time.monotonic()
            elif time.monotonic() - since >= limit:
                return False

    def _standing_still(self) -> Failure:
        limit = self.deployment.gateway.startup_timeout_s
        cause = root_cause_in(self.log)
        stood = f"the engine has stood at '{self.replica.describe()}' for {limit:g} s"
        after = f", after: {with_next_step(cause)}" if cause else ""
        advice = "if it only needs longer, raise gateway.startup_timeout_s"
        problem = OutsideError(f"{stood}{after}; see its log {self.log}; {advice}")
        return Failure(problem, stood, cause or stood, in_log=cause is not None)

    async def _warm_up(self) -> None:
        async with EngineClient(self.socket) as client:
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
                compiles=self.compiles,
            )

    def _warming(self, done: int, total: int) -> None:
        if self._lost.is_set():
            return
        self.replica.move(Stage.WARMING, done, total)
        self.report.progress("warming", self.replica.describe(), done, total)

    async def _explain(self, ending: Ending) -> Failure:
        """Ends what is left of the engine; its last error in one line."""
        ready_s = None if self._ready_at is None else time.monotonic() - self._ready_at
        status = await self.engine.exit_status(DEATH_GRACE_S)
        await self.engine.kill()
        what = ending.describe()
        if status == USAGE_STATUS and (refused := usage_error_in(self.log)):
            problem = UsageError(f"the engine refuses a flag given after `--`: {refused}")
            return Failure(problem, what, refused, ready_s, hopeless=True)
        # One that was killed, or froze, has not logged why; one that had a fatal error has.
        silent = ending.killed or ending.words not in ("", NOT_ENDING)
        logged = root_cause_in(self.log, killed=silent)
        cause = logged or what
        line = f"the engine died: {with_next_step(cause)}; its log is {self.log}"
        in_log = logged is not None or not silent
        return Failure(OutsideError(line), what, cause, ready_s, in_log=in_log)

    async def _drain(self, died: asyncio.Task[Ending]) -> Drained:
        """Lets running requests finish, then ends the engine."""
        self.replica.move(Stage.DRAINING)
        empty = asyncio.create_task(self.replica.empty())
        insisted = asyncio.create_task(self.orders.insisted.wait())
        await asyncio.wait(
            {empty, insisted, died},
            timeout=self.deployment.gateway.shutdown_timeout_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        empty.cancel()
        died.cancel()  # from here on it ends because it is told to
        cut = self.replica.in_flight
        if cut and self.orders.renewing:
            # The gateway goes on with them on another replica.
            self.replica.lose(RENEWED, planned=True)
        if not cut and not insisted.done():
            patience = STARTING_STOP_S if self._ready_at is None else STOP_TIMEOUT_S
            stopped = asyncio.create_task(self.engine.stop(patience))
            await asyncio.wait({stopped, insisted}, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
        insisted.cancel()
        # Streams still running have had their time; `kill` also ends what a hung stop left.
        await self.engine.kill()
        return Drained(0 if self.orders.renewing else cut)


def _unexplained(problem: BaseException) -> Failure:
    if not isinstance(problem, TunanError):
        problem = OutsideError(f"the engine broke off its warm-up: {problem}")
    return Failure(problem, "its warm-up failed", str(problem), in_log=True)
