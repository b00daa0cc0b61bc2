"""Notices that a replica is gone: by a refused connection, a failed probe, a stalled stream.

What a client does wrong never counts: a 4xx, an abort, a slow reader. Nor does the silence of an
answer whose tokens are not sent one by one.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator

from tunan.config.deployment import Gateway
from tunan.gateway.lost import Lost
from tunan.gateway.pool import Pool
from tunan.gateway.replica import Answer, Replica, Stage
from tunan.gateway.upstream import LOST, ExhaustedError, Upstreams

WATCH_S = 0.1
# A replica that reads a long prompt may keep the streams beside it waiting so long.
PREFILL_TOKENS_PER_S = 500
OK = 200
# Of what is allowed to a silent replica: from then on it is asked, so that its answer is known
# when it counts.
SUSPICIOUS = 0.45
# A stall counts so many times later while the replica's server still answers probes: it may only
# be busy, most of all with prompts.
PATIENCE = 1.25
PATIENCE_WHILE_READING = 3
REFUSALS_IN_A_ROW = 5
# Losses that say nothing of the replica, or that it has been told of.
_NO_SIGN = frozenset({"cut", "exhausted"})


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
        watches = [asyncio.create_task(self._watch(replica)) for replica in self._pool.replicas]
        try:
            yield
        finally:
            for task in (*watches, *self._probes.values()):
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
        elif lost.kind not in _NO_SIGN:
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
        except ExhaustedError:
            return True  # nothing is known of it
        except (*LOST, TimeoutError):
            return False

    def _probe_soon(self, replica: Replica, reason: str) -> None:
        running = self._probes.get(replica)
        if running is None or running.done():
            self._probes[replica] = asyncio.create_task(self._probe(replica, reason))

    async def _probe(self, replica: Replica, reason: str) -> None:
        if not await self.alive(replica):
            replica.lose(reason)

    async def _watch(self, replica: Replica) -> None:
        """Asks a replica that is silent for long, and loses it if it is silent for too long."""
        loop = asyncio.get_running_loop()
        asked_at, answers = -math.inf, True
        while True:
            await asyncio.sleep(WATCH_S)
            running = replica.stage is Stage.READY  # held or not
            if not running or self.late(replica, answers=False) < SUSPICIOUS:
                asked_at, answers = -math.inf, True
                continue
            fresh = loop.time() < asked_at + self._settings.probe_interval_s
            due = self.late(replica, answers=answers) >= 1
            # What answers is asked once more before it is lost: this loop may itself have stood
            # still, and what came meanwhile is read by then.
            if not fresh or (due and answers):
                answers = await self.alive(replica)
                asked_at = loop.time()
            if self.late(replica, answers=answers) >= 1:
                replica.lose("its streams stand still")

    def late(self, replica: Replica, *, answers: bool) -> float:
        """By how many times what is allowed to it the replica is silent: from 1 on it is lost.

        `answers`: its server answers probes. Silence of one stream is not enough, since the
        engine may have put it aside for others: the replica must be silent altogether.
        """
        now = asyncio.get_running_loop().time()
        # None is waited for: its client is slow, or it is not sent yet.
        return max(
            (
                (now - max(answer.waiting_since, replica.heard_at))
                / self._allowance(replica, answer, answers)
                for answer in replica.answers
                if answer.steady and answer.waiting_since is not None
            ),
            default=0.0,
        )

    def _allowance(self, replica: Replica, answer: Answer, answers: bool) -> float:
        settings = self._settings
        reads = [a.tokens for a in replica.answers if a.by_model and not a.generating]
        reading_s = sum(reads) / PREFILL_TOKENS_PER_S
        if not answer.generating:
            allowed = settings.first_token_s + reading_s
        else:
            allowed = max(settings.stall_s, settings.stall_multiple * answer.interval_s)
            if self._pool.only(replica):
                allowed = max(allowed, settings.first_token_s)
        if not answers:
            return allowed
        return (allowed + reading_s) * (PATIENCE_WHILE_READING if reads else PATIENCE)
