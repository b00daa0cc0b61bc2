"""Who goes to a replica next: a bounded queue, first come first served."""

import asyncio
from collections import deque

from tunan.config.deployment import Gateway
from tunan.gateway.call import Call
from tunan.gateway.metrics import Metrics
from tunan.gateway.pool import Pool
from tunan.gateway.replica import Replica


class QueueFullError(Exception):
    """As many requests wait as may."""


class Queue:
    """Gives requests their replica, as soon as one has room."""

    def __init__(self, pool: Pool, settings: Gateway, metrics: Metrics) -> None:
        self._pool = pool
        self._settings = settings
        self._metrics = metrics
        self._waiting: deque[asyncio.Future[None]] = deque()
        for replica in pool.replicas:
            replica.on_change.append(lambda _: self._next())

    async def place(self, call: Call) -> Replica | None:
        """A replica with room; None if none had any in time, or none is ready.

        Raises `QueueFullError`.
        """
        if not self._waiting and (replica := self._free(call)):
            return replica
        if len(self._waiting) >= self._settings.max_queued:
            raise QueueFullError
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._metrics.waiting.inc()
        try:
            limit = asyncio.timeout(self._settings.queue_timeout_s)
            with self._metrics.queue_seconds.time():
                async with limit:
                    while self._pool.ready:
                        if self._waiting[0] is turn and (replica := self._free(call)):
                            return replica
                        await turn
                        turn = self._renewed(turn)
        except TimeoutError:
            pass
        finally:
            self._waiting.remove(turn)
            self._metrics.waiting.dec()
            self._next()
        return None

    def _renewed(self, turn: asyncio.Future[None]) -> asyncio.Future[None]:
        """The same place in the queue, to be called once more."""
        fresh: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[self._waiting.index(turn)] = fresh
        return fresh

    def _free(self, call: Call) -> Replica | None:
        return self._pool.choose(call.prefix_key, most=self._settings.max_in_flight)

    def _next(self) -> None:
        if not self._waiting:
            return
        if not self._pool.ready:  # all of them hear it
            for turn in self._waiting:
                _call(turn)
        else:
            _call(self._waiting[0])


def _call(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
