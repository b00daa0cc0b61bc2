"""Notices that a replica is gone: by a refused connection, a failed probe, a stalled stream.

What a client does wrong never counts: a 4xx, an abort, a slow reader.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tunan.config.deployment import Gateway
from tunan.gateway.lost import Lost
from tunan.gateway.pool import Pool
from tunan.gateway.replica import Answer, Replica
from tunan.gateway.upstream import LOST, Upstreams

WATCH_S = 0.1
# A replica that reads a long prompt may keep the streams beside it waiting so long.
PREFILL_TOKENS_PER_S = 500
OK = 200
# A stall counts so many times later while the replica's server still answers probes: then it
# may only be busy.
PATIENCE = 3
REFUSALS_IN_A_ROW = 5


class Health:
    """Watches the replicas of a pool; calls `Replica.lose`."""

    def __init__(self, pool: Pool, upstreams: Upstreams, settings: Gateway) -> None:
        self._pool = pool
        self._upstreams = upstreams
        self._settings = settings
        self._probes: dict[Replica, asyncio.Task[None]] = {}
        self._refusals: dict[Replica, int] = {}

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Looks for stalls while the block runs."""
        watch = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            for task in (watch, *self._probes.values()):
                task.cancel()

    def suspect(self, replica: Replica, lost: Lost) -> None:
        """A request was lost at `replica`: whether all of it is gone is found out."""
        if lost.kind == "refused":
            replica.lose(f"nothing listens at {replica.address}")
        elif lost.kind == "status":
            # One request may be what the engine fails over; several different ones are not.
            self._refusals[replica] = self._refusals.get(replica, 0) + 1
            if self._refusals[replica] >= REFUSALS_IN_A_ROW:
                self._probe_soon(replica, f"it answers {lost.detail} to everything")
        elif lost.kind != "cut":
            self._probe_soon(replica, lost.detail)

    def trust(self, replica: Replica) -> None:
        """A request was answered by `replica`."""
        self._refusals.pop(replica, None)

    async def alive(self, replica: Replica) -> bool:
        """Whether it answers 200 to `/health` in time."""
        try:
            async with asyncio.timeout(self._settings.probe_timeout_s):
                answer = await self._upstreams.request(replica, "GET", "/health")
                async with answer:
                    return answer.status == OK
        except (*LOST, TimeoutError):
            return False

    def _probe_soon(self, replica: Replica, reason: str) -> None:
        running = self._probes.get(replica)
        if running is None or running.done():
            self._probes[replica] = asyncio.create_task(self._probe(replica, reason))

    async def _probe(self, replica: Replica, reason: str) -> None:
        if not await self.alive(replica):
            replica.lose(reason)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(WATCH_S)
            now = loop.time()
            for replica in self._pool.replicas:
                if replica.ready and (late := self.stalled(replica, now)):
                    await self._decide(replica, late)

    def stalled(self, replica: Replica, now: float) -> float:
        """By how many times its allowance the replica is late; 0: it is not.

        Silence of one stream is not enough, since the engine may have put it aside for
        others: the replica must be silent altogether.
        """
        late = 0.0
        for answer in replica.answers:
            if answer.waiting_since is None:  # its client is slow, or it is not sent yet
                continue
            silent = now - max(answer.waiting_since, replica.heard_at)
            late = max(late, silent / self._allowance(replica, answer))
        return late if late >= 1 else 0.0

    def _allowance(self, replica: Replica, answer: Answer) -> float:
        settings = self._settings
        if not answer.generating:
            return settings.first_token_s
        reading = sum(a.tokens for a in replica.answers if not a.generating)
        allowed = max(settings.stall_s, settings.stall_multiple * answer.interval_s)
        if self._pool.only(replica):
            allowed = max(allowed, settings.first_token_s)
        return allowed + reading / PREFILL_TOKENS_PER_S

    async def _decide(self, replica: Replica, late: float) -> None:
        if late < PATIENCE and await self.alive(replica):
            return
        now = asyncio.get_running_loop().time()
        if self.stalled(replica, now):  # nothing came while it was asked
            replica.lose("its streams stand still")
