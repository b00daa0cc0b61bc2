"""Asks every replica regularly whether it is there: how replicas started elsewhere get ready.

A replica that the supervisor started tells its own stage; of it a probe only notices the loss.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from tunan.config.deployment import Gateway
from tunan.gateway.pool import Pool
from tunan.gateway.replica import HttpAddress, Replica, Stage
from tunan.gateway.upstream import LOST, ExhaustedError, Upstreams, reason_of

FAILURES = 3  # in a row, before a replica that was ready is lost
FAILURES_OF_THE_ONLY_ONE = 30  # while no other replica is ready
OK, UNAVAILABLE = 200, 503
# Of a `tunan serve` elsewhere: all that is not one of these is only told for the messages.
_GONE = (Stage.DOWN, Stage.FAILED)
_BEFORE_READY = (Stage.AWAY, Stage.STARTING, Stage.LOADING, Stage.COMPILING, Stage.WARMING)


class Probes:
    """One task a replica, while the block of `running` runs."""

    def __init__(self, pool: Pool, upstreams: Upstreams, settings: Gateway) -> None:
        self._pool = pool
        self._upstreams = upstreams
        self._settings = settings

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Probes until the block ends."""
        tasks = [asyncio.create_task(self._repeat(replica)) for replica in self._pool.replicas]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()

    async def _repeat(self, replica: Replica) -> None:
        failures = 0
        while True:
            with contextlib.suppress(ExhaustedError):  # then nothing is known of it
                failures = 0 if await self._well(replica) else failures + 1
                allowed = FAILURES_OF_THE_ONLY_ONE if self._pool.only(replica) else FAILURES
                if failures >= allowed and replica.stage in (Stage.READY, Stage.DRAINING):
                    replica.lose("it does not answer health probes")
            await asyncio.sleep(self._settings.probe_interval_s)

    async def _well(self, replica: Replica) -> bool:
        """Whether nothing speaks against it. Raises `ExhaustedError`."""
        began = asyncio.get_running_loop().time()
        elsewhere = isinstance(replica.address, HttpAddress)
        if not elsewhere and not replica.ready:
            return True
        answered = await (self._ask(replica) if elsewhere else self._health(replica))
        # An answer of the model says more than a probe that a busy server let wait.
        return answered or replica.heard_at >= began

    async def _ask(self, replica: Replica) -> bool:
        """Moves a replica elsewhere to the stage that it tells; whether it answered."""
        status, body = await self._get(replica, "/ready")
        if status not in (0, OK, UNAVAILABLE):  # not a `tunan serve`
            status, body = await self._get(replica, "/health")
        if self._pool.closed:  # perhaps while it was asked
            return status in (OK, UNAVAILABLE)
        if status == OK:
            _becomes_ready(replica)
        elif status == UNAVAILABLE:
            _becomes(replica, body)
        elif replica.stage in _BEFORE_READY:
            _is_not_there(replica, body.decode() if status == 0 else f"/health answers {status}")
        return status in (OK, UNAVAILABLE)

    async def _health(self, replica: Replica) -> bool:
        return (await self._get(replica, "/health"))[0] == OK

    async def _get(self, replica: Replica, path: str) -> tuple[int, bytes]:
        """Status and body of the answer; 0 and why if there is none."""
        try:
            async with asyncio.timeout(self._settings.probe_timeout_s):
                async with await self._upstreams.request(replica, "GET", path) as answer:
                    return answer.status, await answer.read()
        except (*LOST, TimeoutError) as error:
            return 0, (reason_of(error) + self._hint(replica, error)).encode()

    def _hint(self, replica: Replica, error: Exception) -> str:
        """TLS 1.3 has no other sign for a client that should have shown a certificate."""
        shown = self._settings.replica_cert_file or not str(replica.address).startswith("https:")
        if shown or not isinstance(error, aiohttp.ServerDisconnectedError):
            return ""
        return "; perhaps it wants a certificate: gateway.replica_cert_file"


def _is_not_there(replica: Replica, why: str) -> None:
    """It has not answered yet: what is in its way may change."""
    if (replica.stage, replica.problem) != (Stage.AWAY, why):
        replica.move(Stage.AWAY, problem=why)


def _becomes_ready(replica: Replica) -> None:
    if replica.ready:
        return
    if replica.stage in (Stage.DRAINING, Stage.FAILED):  # it was started anew, elsewhere
        replica.restart()
    replica.move(Stage.READY)


def _becomes(replica: Replica, body: bytes) -> None:
    told = _told(body)
    try:
        stage = Stage(told.get("stage", Stage.DOWN))
    except ValueError:
        stage = Stage.STARTING
    if stage in _GONE or stage is Stage.READY:
        replica.lose("it says that its engine is gone")
    elif stage is Stage.DRAINING or replica.stage is not Stage.DRAINING:
        replica.move(stage, _number(told.get("done")), _number(told.get("total")))


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _told(body: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        told = json.loads(body)
        if isinstance(told, dict):
            return told
    return {}
