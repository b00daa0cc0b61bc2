"""Says which replicas a gateway that runs alone can count on: one comes, goes, or is not there."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from tunan.gateway.pool import Pool
from tunan.gateway.replica import Replica, Stage

Tell = Callable[[str], None]


@contextlib.asynccontextmanager
async def saying(pool: Pool, tell: Tell, patience_s: float) -> AsyncIterator[None]:
    """While the block runs: a line for each replica that gets ready or is lost, and after
    `patience_s` one for each that is not ready yet.
    """
    known: set[Replica] = set()

    def changed(replica: Replica) -> None:
        if replica.stage is not Stage.READY:
            known.discard(replica)
        elif replica not in known:
            known.add(replica)
            tell(f"{replica.name} is ready: {replica.address}")

    def lost(replica: Replica, reason: str) -> None:
        tell(f"{replica.name} is lost: {reason}")

    for replica in pool.replicas:
        replica.on_change.append(changed)
        replica.on_lost.append(lost)
        changed(replica)
    try:
        async with saying_missing(pool.replicas, lambda _, text: tell(text), patience_s):
            yield
    finally:
        for replica in pool.replicas:
            replica.on_change.remove(changed)
            replica.on_lost.remove(lost)


@contextlib.asynccontextmanager
async def saying_missing(
    replicas: Sequence[Replica], tell: Callable[[Replica, str], None], patience_s: float
) -> AsyncIterator[None]:
    """After `patience_s`, if the block still runs then: a line for each that is not ready yet."""

    async def look() -> None:
        await asyncio.sleep(patience_s)
        for replica in replicas:
            if replica.stage is not Stage.READY:
                place = f"{replica.address}: {replica.describe()}"
                tell(replica, f"{replica.name} is not ready yet: {place}")

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        looking.cancel()
