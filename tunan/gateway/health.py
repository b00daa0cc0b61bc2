"""Notices that a replica is gone: by a refused connection, a failed probe, a stalled stream.

What a client does wrong never counts: a 4xx, an abort, a slow reader. Nor does the silence of an
answer whose tokens are not sent one by one, as long as the engine's own counters move.
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
from tunan.gateway.work_signs import work_signs

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
AT_ONCE_S = 0.2
LOOKS = 20  # at an engine's counters within the time that they may stand still
# Losses that say nothing of the replica, or that it has been told of.
_NO_SIGN = frozenset({"cut", "moved", "exhausted"})


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
        watches = [
            asyncio.create_task(watch(replica))
            for replica in self._pool.replicas
            for watch in (self._watch, self._watch_work)
        ]
        try:
            yield
        finally:
            for task in (*watches, *self._probes.values()):
                task.cancel()

    def suspect(self, replica: Replica, lost: Lost) -> None:
        """A request was lost at `replica`: whether all of it is gone is found out."""
        if lost.kind == "refused":
            replica.lose(f"{lost.detail} ({replica.address})")
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

    async def survives(self, replica: Replica) -> bool:
        """Whether a replica that was just suspected answers its probe, and at once."""
        probe = self._probes.get(replica)
        if probe is not None:
            await asyncio.wait({probe}, timeout=AT_ONCE_S)
        return replica.ready and probe is not None and probe.done()

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
            if running and self.frozen(replica):
                replica.lose(replica.frozen)
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

    async def _watch_work(self, replica: Replica) -> None:
        """Loses a replica whose engine stands still under answers that are silent by their kind."""
        signs: tuple[str, ...] = ()
        while True:
            await asyncio.sleep(max(WATCH_S, self._settings.first_token_s / LOOKS))
            if replica.stage is not Stage.READY or not _silent_by_kind(replica):
                signs = ()
                continue
            told = await self._work_signs(replica)
            # Without such counters nothing can be said of it.
            if told is not None and (told != signs or not told):
                signs, replica.worked_at = told, asyncio.get_running_loop().time()
            if self.idle(replica) >= 1:
                replica.lose("its engine stands still")

    async def _work_signs(self, replica: Replica) -> tuple[str, ...] | None:
        """Its counters; None if it does not answer, which is for the probes to judge."""
        try:
            async with asyncio.timeout(self._settings.probe_timeout_s):
                async with await self._upstreams.request(replica, "GET", "/metrics") as answer:
                    return work_signs(await answer.text()) if answer.status == OK else ()
        except (*LOST, ExhaustedError, TimeoutError, UnicodeDecodeError):
            return None

    def frozen(self, replica: Replica) -> bool:
        """Whether processes of it are stopped for longer than the only one may be."""
        if not replica.frozen:
            return False
        since = asyncio.get_running_loop().time() - replica.frozen_since
        return not self._pool.only(replica) or since >= self._settings.first_token_s

    def idle(self, replica: Replica) -> float:
        """By how many times what is allowed its engine has not worked: from 1 on it is lost."""
        now = asyncio.get_running_loop().time()
        known = max(replica.heard_at, replica.worked_at)
        allowed = self._settings.first_token_s + _reading_s(replica)
        return max((now - max(at, known) for at in _silent_by_kind(replica)), default=0.0) / allowed

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
        reading_s = _reading_s(replica)
        if not answer.generating:
            allowed = settings.first_token_s + reading_s
        else:
            allowed = max(settings.stall_s, settings.stall_multiple * answer.interval_s)
            if self._pool.only(replica):
                allowed = max(allowed, settings.first_token_s)
        if not answers:
            return allowed
        return (allowed + reading_s) * (PATIENCE_WHILE_READING if reading_s else PATIENCE)


def _reading_s(replica: Replica) -> float:
    """How long it may take to read the prompts that it has to read; 0: there are none."""
    reads = [a.tokens for a in replica.answers if a.by_model and not a.generating]
    return sum(reads) / PREFILL_TOKENS_PER_S


def _silent_by_kind(replica: Replica) -> list[float]:
    """Since when those of its answers are waited for whose silence says nothing."""
    return [
        answer.waiting_since
        for answer in replica.answers
        if answer.by_model and not answer.steady and answer.waiting_since is not None
    ]
