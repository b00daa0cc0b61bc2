"""How long a gateway may count on its lease, and the renewing of it.

It counts on three quarters of a lease, from when it asked for the last renewal. etcd begins to
count later and counts longer, so two gateways never hold at once (Gray and Cheriton, Leases, 1989).
The clock is that of the machine's uptime; no date enters.
"""

import asyncio
from typing import Protocol

from tunan.gateway.etcd import EtcdClient, EtcdError, Lease
from tunan.gateway.hook_process import clock
from tunan.gateway.seat import Cause, OverError

KEPT = 0.75  # of a lease: what remains is for the hook to release
ROUNDS = 4  # renewals in a lease


class Listener(Protocol):
    """Who is told how the renewing goes."""

    def renewed(self, until: float) -> None:
        """It may be counted on until then (`clock`)."""

    def trouble(self, error: EtcdError) -> None:
        """One attempt failed; further ones follow."""


class Term:
    """One lease, from when it was `asked` for (`clock`) until `deadline`."""

    def __init__(self, etcd: EtcdClient, lease: Lease, asked: float, listener: Listener) -> None:
        self.lease = lease
        self.deadline = asked + lease.ttl_s * KEPT
        self._etcd = etcd
        self._listener = listener

    @property
    def over(self) -> bool:
        """Right even before a late timer has run."""
        return clock() >= self.deadline

    def check(self) -> None:
        """Raises `OverError` if it is over."""
        if self.over:
            raise OverError(Cause.LEASE, "its lease was not renewed in time")

    async def renew(self) -> None:
        """Until that failed for too long, or etcd knows nothing of the lease: raises `OverError`.

        The next attempt does not wait for the last: an answer that is slow in coming counts, too.
        """
        attempts: set[asyncio.Task[None]] = set()
        try:
            while True:
                self.check()
                attempts.add(asyncio.create_task(self._attempt(len(attempts))))
                attempts = await self._wait(attempts, clock() + self.lease.ttl_s / ROUNDS)
        finally:
            for attempt in attempts:
                attempt.cancel()

    async def _wait(
        self, attempts: "set[asyncio.Task[None]]", until: float
    ) -> "set[asyncio.Task[None]]":
        """Those that have no answer by then, or by the deadline. Raises what one raised."""
        while (left_s := min(until, self.deadline) - clock()) > 0:
            if not attempts:
                await asyncio.sleep(left_s)
                continue
            done, attempts = await asyncio.wait(
                attempts, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
            for attempt in done:
                attempt.result()
        return attempts

    async def _attempt(self, unanswered: int) -> None:
        """Members that owe an answer are asked last."""
        asked = clock()
        try:
            ttl_s = await self._etcd.keep_alive(self.lease, unanswered)
        except EtcdError as error:
            self._listener.trouble(error)
            return
        if ttl_s == 0:
            raise OverError(Cause.LEASE, "etcd says that its lease has run out")
        if not self.over:  # an answer that comes too late changes nothing
            self.deadline = max(self.deadline, asked + ttl_s * KEPT)
            self._listener.renewed(self.deadline)
