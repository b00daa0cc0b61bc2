"""All replicas of one service together: who starts when, rollout, drain, and the end."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from tunan.config import Deployment
from tunan.errors import CheckFailedError, TunanError, UsageError
from tunan.gateway.election import Election
from tunan.gateway.pool import Pool
from tunan.gateway.replica import Replica, Role
from tunan.supervisor.life import Life
from tunan.supervisor.orders import Stop
from tunan.supervisor.report import About, Report
from tunan.supervisor.shared_pages import SharedPages

CUT_STREAMS_S = 2.0  # for the front door to tell running streams that the engine is gone

Tell = Callable[[str], None]


class Fleet:
    """The replicas of `pool`; `lives` are of those that are started here."""

    def __init__(
        self, deployment: Deployment, pool: Pool, report: Report, stop: Stop, address: str
    ) -> None:
        self.deployment = deployment
        self.pool = pool
        self.address = address
        self.lives: tuple[Life, ...] = ()
        self.election: Election | None = None  # of the gateway that holds a shared address
        self.pages = SharedPages()
        self.rolling = False
        self._report = report
        self._stop = stop
        self._served = asyncio.Event()
        self._over = asyncio.Event()
        self._problem: TunanError | None = None
        self._ready: set[Replica] = set()
        self._measuring: set[asyncio.Task[None]] = set()
        for replica in pool.replicas:
            replica.on_change.append(self._changed)
            replica.on_lost.append(self._lost)

    def about(self, replica: Replica) -> About:
        """The report on one of the replicas."""
        return About(self._report, replica.name, alone=len(self.pool.replicas) == 1)

    def has_served(self) -> bool:
        """Whether any replica has been ready yet."""
        return self._served.is_set()

    def life_failed(self, life: Life) -> bool:
        """A replica stays down; to be called by its life. The last one ends the service: False."""
        elsewhere = len(self.pool.replicas) > len(self.lives)
        if not self.has_served() or (not elsewhere and all(life.problem for life in self.lives)):
            self._problem = life.problem
            self._over.set()
        return not self._over.is_set()

    async def run(self) -> int:
        """Serves until told to stop, and drains: the exit status. Raises what ended the service."""
        lives = [asyncio.create_task(self._live(life)) for life in self.lives]
        asked = asyncio.create_task(self._stop.asked.wait())
        over = asyncio.create_task(self._over.wait())
        try:
            # A life that ends before it is told to is a defect of ours, and raised below.
            await asyncio.wait({asked, over, *lives}, return_when=asyncio.FIRST_COMPLETED)
            if over.done() and not asked.done():
                await self._cut_streams()
                assert self._problem is not None  # noqa: S101  # set before `over`
                raise self._problem
            return await self._drain(lives)
        finally:
            for task in (asked, over, *lives, *self._measuring):
                task.cancel()
            await asyncio.gather(*lives, *self._measuring, return_exceptions=True)

    async def rollout(self, tell: Tell) -> None:
        """Restarts every replica that is started here, one after the other; standbys first.

        Each is drained first; what still runs on it after `gateway.shutdown_timeout_s` goes on
        elsewhere. Raises `UsageError` or `CheckFailedError`, with the others left as they are.
        """
        self._refuse_rollout()
        self.rolling = True
        try:
            for life in sorted(self.lives, key=lambda life: life.replica.role is Role.ACTIVE):
                await self._renew(life, tell)
        finally:
            self.rolling = False

    def _refuse_rollout(self) -> None:
        if self.rolling:
            raise CheckFailedError("a rollout is going on already; see `tunan status`")
        if not self.has_served():
            raise CheckFailedError("the service has not been ready yet; see `tunan status`")
        if not self.lives:
            raise UsageError("no engine of this service was started here; restart them there")
        if len(self.pool.replicas) == 1:
            raise UsageError(
                "with one replica nobody would answer meanwhile; set replicas.count to 2 or "
                "replicas.standby to 1, or restart `tunan serve`"
            )

    async def _renew(self, life: Life, tell: Tell) -> None:
        replica = life.replica
        others = [other for other in self.pool.replicas if other is not replica]
        if replica.ready and not any(other.ready for other in others):
            raise CheckFailedError(
                f"no other replica is ready, so {replica.name} was not restarted; "
                "see `tunan status`"
            )
        self.about(replica).event("renewing", in_flight=replica.in_flight)
        tell(f"{replica.name}: draining {replica.in_flight} requests, then starting it again")
        try:
            await life.renew()
        except TunanError as error:
            raise CheckFailedError(f"{replica.name} did not come back: {error}") from None
        tell(f"{replica.name}: ready")

    async def _live(self, life: Life) -> int:
        """The first replica starts alone: one is ready sooner, the others find what it cached."""
        if life is not self.lives[0]:
            waits = [
                asyncio.create_task(event.wait()) for event in (self._served, life.orders.asked)
            ]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in waits:
                task.cancel()
        return await life.live()

    def _changed(self, replica: Replica) -> None:
        if not replica.ready:
            self._ready.discard(replica)
        elif replica not in self._ready:
            self._ready.add(replica)
            self._announce(replica)

    def _lost(self, replica: Replica, reason: str) -> None:
        here = any(life.replica is replica for life in self.lives)
        text = "" if here else f"lost: {reason}"  # a life says what it does about it
        self.about(replica).event("lost", text, what=reason)

    def _announce(self, replica: Replica) -> None:
        about, model = self.about(replica), self.deployment.served_model_name
        text = "ready again" if about.alone else "ready"
        if not self.has_served():
            self._served.set()
            text = f"ready: {model} at {self.address}\n  {self._example()}"
        about.event("ready", text, model=model, address=self.address)
        for life in self.lives:
            if life.replica is replica and len(self.lives) > 1:
                task = asyncio.create_task(self._measure(life))
                self._measuring.add(task)
                task.add_done_callback(self._measuring.discard)

    def _example(self) -> str:
        model = self.deployment.served_model_name
        request = f'{{"model":"{model}","messages":[{{"role":"user","content":"Hello"}}]}}'
        key = " -H 'Authorization: Bearer KEY'" if self.deployment.gateway.api_keys_file else ""
        return (
            f"curl {self.address}/v1/chat/completions -H 'Content-Type: application/json'{key} "
            f"-d '{request}'"
        )

    async def _measure(self, life: Life) -> None:
        """Says how much memory this replica adds to that of the others, whose pages it shares."""
        name = life.replica.name
        pids = {live.replica.name: live.pid for live in self.lives if live.pid}
        ready = {replica.name for replica in self._ready}
        added = await self.pages.measure({n: pid for n, pid in pids.items() if n in ready}, name)
        if added is not None:
            self.about(life.replica).event(
                "memory",
                f"it takes {added >> 20} MiB beside the others",
                added=added,
                proportional=self.pages.of(name),
            )

    async def _cut_streams(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(_all_empty(self.pool.replicas), CUT_STREAMS_S)

    async def _drain(self, lives: Sequence["asyncio.Task[int]"]) -> int:
        """Lets running requests finish, then ends the engines."""
        self.pool.close()
        in_flight = sum(replica.in_flight for replica in self.pool.replicas)
        limit = self.deployment.gateway.shutdown_timeout_s
        if in_flight:
            self._report.event(
                "draining",
                f"tunan: draining {in_flight} requests, at most {limit:g} s "
                "(interrupt again to end at once)",
                in_flight=in_flight,
            )
        for life in self.lives:
            life.orders.stop()
        cut = sum(await asyncio.gather(self._drain_elsewhere(limit), *lives))
        if self._stop.insisted.is_set():
            return 128 + self._stop.signal
        suffix = f"; {cut} requests were cut after {limit:g} s" if cut else ""
        self._report.event("stopped", f"tunan: stopped{suffix}", cut=cut)
        return 0

    async def _drain_elsewhere(self, limit: float) -> int:
        here = {life.replica for life in self.lives}
        elsewhere = [replica for replica in self.pool.replicas if replica not in here]
        empty = asyncio.create_task(_all_empty(elsewhere))
        insisted = asyncio.create_task(self._stop.insisted.wait())
        await asyncio.wait({empty, insisted}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        empty.cancel()
        insisted.cancel()
        return sum(replica.in_flight for replica in elsewhere)


async def _all_empty(replicas: Sequence[Replica]) -> None:
    for replica in replicas:
        await replica.empty()
