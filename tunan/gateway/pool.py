"""The replicas behind one front door, and which of them gets the next request."""

import asyncio
import contextlib
import hashlib
from collections.abc import Collection, Sequence

from tunan.gateway.replica import Replica, Role, Stage

# How much more work the replica that knows a prompt's prefix may have than the least busy one.
AFFINITY_SLACK_TOKENS = 2048
# What is said of the pool as a whole: the stage of the replica that is furthest.
_FURTHEST = (
    Stage.READY,
    Stage.WARMING,
    Stage.COMPILING,
    Stage.LOADING,
    Stage.STARTING,
    Stage.AWAY,
    Stage.DRAINING,
    Stage.DOWN,
    Stage.FAILED,
)


class Pool:
    """A fixed set of replicas. All on one asyncio loop."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        if not replicas:
            raise ValueError("a pool needs a replica")
        self.replicas = tuple(replicas)
        self.closed = False  # for good: what a replica tells does not make it ready any more
        self._changed = asyncio.Event()
        for replica in self.replicas:
            replica.on_change.append(lambda _: self._changed.set())

    @property
    def ready(self) -> bool:
        """Whether any replica may be asked now."""
        return any(replica.ready for replica in self.replicas)

    @property
    def furthest(self) -> Replica:
        """The replica that answers or will first: it stands for the pool in messages."""
        return min(self.replicas, key=lambda replica: _FURTHEST.index(replica.stage))

    @property
    def ending(self) -> bool:
        """Whether none of them will be ready again."""
        return all(replica.stage in (Stage.DRAINING, Stage.FAILED) for replica in self.replicas)

    def close(self) -> None:
        """Nothing new is sent to any of them from now on; what runs on them may end."""
        self.closed = True
        for replica in self.replicas:
            replica.move(Stage.DRAINING)

    def only(self, replica: Replica) -> bool:
        """Whether no other replica is ready: then losing it too soon costs most."""
        return not any(other.ready for other in self.replicas if other is not replica)

    def choose(
        self,
        prefix_key: bytes = b"",
        avoid: Collection[Replica] = (),
        most: int | None = None,
    ) -> Replica | None:
        """The ready replica with the fewest outstanding tokens; None if none is ready.

        A standby only if no active replica is ready; one of `avoid` only if nothing else is;
        with `most` none that has so many requests.
        With a `prefix_key` the same key goes to the same replica as long as that one has
        hardly more to do, so that its prefix cache answers (rendezvous hashing: a replica
        that goes or comes moves only its own keys; Thaler and Ravishankar, 1998).
        """
        ready = [replica for replica in self.replicas if replica.ready]
        ready = [replica for replica in ready if replica not in avoid] or ready
        ready = [replica for replica in ready if replica.role is Role.ACTIVE] or ready
        if most is not None:
            ready = [replica for replica in ready if replica.in_flight < most]
        if not ready:
            return None
        least = min(ready, key=lambda replica: (replica.outstanding_tokens, replica.in_flight))
        if not prefix_key:
            return least
        known = max(ready, key=lambda replica: _weight(prefix_key, replica))
        close = known.outstanding_tokens <= least.outstanding_tokens + AFFINITY_SLACK_TOKENS
        return known if close else least

    async def changed(self, timeout_s: float | None = None) -> None:
        """Returns at the next change of a replica's stage or number of requests, or in time."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout_s)

    def describe(self) -> str:
        """The stages in words; with several replicas each by its name."""
        if len(self.replicas) == 1:
            return self.replicas[0].describe()
        return ", ".join(f"{replica.name} {replica.describe()}" for replica in self.replicas)


def _weight(prefix_key: bytes, replica: Replica) -> bytes:
    return hashlib.blake2b(prefix_key + replica.name.encode(), digest_size=8).digest()
