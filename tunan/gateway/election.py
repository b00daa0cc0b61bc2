"""Which of several gateways holds the address that they share: a queue under leases of etcd.

Every gateway keeps a key with a lease of its own; the oldest key holds. So one that dies is
followed by the next as soon as its lease runs out (term.py), and one that leaves at once.
"""

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from tunan.config.etcd import Etcd
from tunan.gateway.etcd import EtcdClient, EtcdError
from tunan.gateway.hook import Hook
from tunan.gateway.hook_process import ACQUIRE, RELEASE, clock
from tunan.gateway.pool import Pool
from tunan.gateway.seat import Cause, OverError, Seat, seat_of
from tunan.gateway.term import ROUNDS, Term

PATIENCE = 0.5  # of a lease, for one member of etcd to answer
LONGEST_S = 2.0  # either of the two, however long the lease
QUIET_S = 5.0  # etcd answers again: not before it has for so long


class Election:
    """This gateway's part. `tell` gets one line at every change.

    `takeovers`, `ended` (by cause) and `hook_failures` (by action) count since the start; `left` is
    set once it takes no more part.
    """

    def __init__(
        self, settings: Etcd, name: str, pool: Pool, tell: Callable[[str], object]
    ) -> None:
        """Raises `UsageError` if a file or the hook that `settings` name cannot be used."""
        self.name = settings.name or name
        self.takeovers = 0
        self.ended: Counter[str] = Counter()
        self.hook_failures: Counter[str] = Counter({ACQUIRE: 0, RELEASE: 0})
        self.left = asyncio.Event()
        self._settings = settings
        self._pool = pool
        self._tell = tell
        self._round_s = min(LONGEST_S, settings.lease_s / ROUNDS)
        self._etcd = EtcdClient(settings, min(LONGEST_S, settings.lease_s * PATIENCE))
        self._hook = Hook(settings, self.name)
        self._term: Term | None = None
        self._holds = False
        self._to_release = True  # what a gateway that was killed here may have left
        self._seats: list[Seat] = []
        self._leader = ""
        self._ready_at = clock()
        self._news = asyncio.Event()
        self._problems: dict[str, None] = {}
        self._problem_at = 0.0

    @property
    def holding(self) -> bool:
        """Whether the address is this gateway's now."""
        return self._holds and self._term is not None and not self._term.over

    @property
    def etcd_answers(self) -> bool:
        """Whether nothing is wrong with etcd, as far as is known."""
        return not self._problems

    def describe(self) -> dict[str, Any]:
        """As `/admin/holder` and `tunan status --json` show it; `holder` is null if unknown."""
        known = self._seats[0].name if self._seats and self.etcd_answers else None
        return {
            "name": self.name,
            "holding": self.holding,
            "holder": self.name if self.holding else known,
            "gateways": [{"name": seat.name, "ready": seat.ready} for seat in self._seats],
            "takeovers": self.takeovers,
            "problem": next(reversed(self._problems), ""),
        }

    async def run(self, leave: asyncio.Event) -> None:
        """Takes part until `leave` is set, then lets go of the address at once."""
        async with self._etcd:
            taking = asyncio.create_task(self._take_part())
            try:
                await leave.wait()
            finally:
                taking.cancel()
                await asyncio.gather(taking, return_exceptions=True)
                await self._stand_down(OverError(Cause.STOPPED, "this gateway stops"))
                await self._hook.close()
                self.left.set()

    async def _take_part(self) -> None:
        await self._release()
        while True:
            over = await self._stay()
            await self._stand_down(over)
            failed = over.cause is Cause.HOOK
            await asyncio.sleep(self._settings.give_way_s if failed else self._round_s)

    async def _stay(self) -> OverError:
        """Queues up, if that is wanted; why that is over."""
        try:
            return await self._queue_up()
        except OverError as error:
            return error
        except EtcdError as error:
            self.trouble(error)
            return OverError(Cause.LEASE, str(error))
        except Exception as error:  # the address must not stay with who does not look after it
            self._tell(f"defect in the election, which begins anew: {error!r}")
            return OverError(Cause.DEFECT, repr(error))

    async def _queue_up(self) -> OverError:
        """Raises `OverError` or `EtcdError`, if it does not return, when the stay is over."""
        if self._term is not None:  # the lease could not be given back when it was over
            await self._etcd.revoke(self._term.lease)
            self._term = None
            self._hook.lease(None)
        if not self._wanted(await self._look()):
            return OverError(Cause.UNREADY, "no replica is ready")
        asked = clock()
        lease = await self._etcd.grant(self._settings.lease_s)
        self._term = term = Term(self._etcd, lease, asked, self)
        self._ready_at = clock()
        # None of them returns but by raising.
        await _first_of(term.renew(), self._watch(), self._sit(term), self._overtaken(term))
        return OverError(Cause.DEFECT, "it just ended")

    async def _overtaken(self, term: Term) -> None:
        """Raises once what was acquired is released without an order."""
        await self._hook.overtaken.wait()
        term.check()
        raise OverError(Cause.HOOK, "the process that runs the hook is gone")

    def _wanted(self, others: list[Seat]) -> bool:
        """Without a ready replica it stays away, unless nobody else has one either."""
        return self._pool.ready or not any(seat.ready for seat in others)

    async def _watch(self) -> None:
        """Sets `_news`; without it every change would still be found, a round later."""
        while True:
            with contextlib.suppress(EtcdError):
                async for _ in self._etcd.changes(self._settings.prefix):
                    self._news.set()
            await asyncio.sleep(self._round_s)

    async def _sit(self, term: Term) -> None:
        """Waits for its turn, takes the address then, and looks after the seat."""
        key, told = f"{self._settings.prefix}{term.lease.id}", None
        while True:
            self._news.clear()
            seat = Seat(key, self.name, self._pool.ready)
            try:
                if told != seat:
                    await self._etcd.put(seat.entry(), term.lease)
                    told = seat
                await self._judge(term, key, await self._look())
            except EtcdError as error:
                self.trouble(error)  # how long that may go on is the lease's matter
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), self._round_s)

    async def _judge(self, term: Term, key: str, seats: list[Seat]) -> None:
        if all(seat.key != key for seat in seats) or (self._holds and seats[0].key != key):
            raise OverError(Cause.REMOVED, "its key is gone from etcd")
        if self._pool.ready:
            self._ready_at = clock()
        elif clock() - self._ready_at >= self._settings.give_way_s and not self._wanted(seats):
            raise OverError(Cause.UNREADY, "no replica is ready here, but at another gateway")
        if seats[0].key == key and not self._holds:
            await self._take(term)

    async def _take(self, term: Term) -> None:
        term.check()  # it may have been its turn before this process was stopped
        self._to_release = True
        outcome = await self._hook.acquire(term.deadline)
        if not outcome.ok:
            self.hook_failures[ACQUIRE] += 1
            reason = f"hook acquire failed: {outcome.said}"
            self._tell(f"{reason}; another gateway may try, and this one again later")
            raise OverError(Cause.HOOK, reason)
        term.check()
        self._holds = True
        self.takeovers += 1
        self._tell(f"{self.name} holds the shared address")

    async def _stand_down(self, over: OverError) -> None:
        held, self._holds = self._holds, False
        if held:
            self.ended[over.cause] += 1
            self._tell(f"{self.name} does not hold the shared address any more: {over}")
        if self._to_release:
            await self._release()
        if self._term is None:
            return
        # Whoever is next need not wait for the lease to run out; after that it is of no use.
        with contextlib.suppress(EtcdError, TimeoutError):
            async with asyncio.timeout(self._term.lease.ttl_s):
                await self._etcd.revoke(self._term.lease)
                self._term = None
                self._hook.lease(None)

    async def _release(self) -> None:
        outcome = await self._hook.release()
        self._to_release = False
        if not outcome.ok:
            self.hook_failures[RELEASE] += 1
            self._tell(f"hook release failed, so the address may still be here: {outcome.said}")

    async def _look(self) -> list[Seat]:
        """The queue; remembers and tells whose turn it is. Raises `EtcdError`."""
        entries = await self._etcd.entries(self._settings.prefix)
        self._well()
        self._seats = [seat_of(entry) for entry in entries]
        leader = self._seats[0].name if self._seats else ""
        if leader not in ("", self.name, self._leader):
            self._tell(f"the shared address is that of {leader}")
        self._leader = leader or self._leader
        return self._seats

    def renewed(self, until: float) -> None:
        """The hook's process may leave the address here until then (`clock`)."""
        self._well()
        self._hook.keep(until)
        if self._term is not None:  # etcd's token may be another one by now
            self._hook.lease(self._etcd.revoking(self._term.lease))

    def trouble(self, error: EtcdError) -> None:
        """Told once, until etcd is well again."""
        self._problem_at = clock()
        if str(error) not in self._problems:
            self._problems[str(error)] = None
            self._tell(f"etcd: {error}; requests are answered all the same")

    def _well(self) -> None:
        if self._problems and clock() - self._problem_at >= QUIET_S:
            self._problems.clear()
            self._tell("etcd answers again")


def election_of(
    settings: Etcd, port: int, pool: Pool, tell: Callable[[str], object]
) -> Election | None:
    """None where there is no etcd; `port` tells gateways of one machine apart.

    Raises `UsageError`.
    """
    if not settings.endpoints:
        return None
    return Election(settings, f"{socket.gethostname()}:{port}", pool, tell)


@contextlib.asynccontextmanager
async def taking_part(election: Election | None, leave: asyncio.Event) -> AsyncIterator[None]:
    """Takes part while the block runs, or until `leave` is set."""
    if election is None:
        yield
        return
    running = asyncio.create_task(election.run(leave))
    try:
        yield
    finally:
        if not leave.is_set():  # else it is leaving
            running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def _first_of(*parts: Awaitable[Any]) -> None:
    """Runs them side by side until one ends, and raises what it raised."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
