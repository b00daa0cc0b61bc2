"""Says which replicas a gateway that runs alone can count on: one comes, goes, or is not there."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

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
    missing = asyncio.create_task(_missing(pool, tell, patience_s))
    try:
        yield
    finally:
        missing.cancel()
        for replica in pool.replicas:
            replica.on_change.remove(changed)
            replica.on_lost.remove(lost)


async def _missing(pool: Pool, tell: Tell, patience_s: float) -> None:
    await asyncio.sleep(patience_s)
    for replica in pool.replicas:
        if replica.stage is not Stage.READY:
            tell(f"{replica.name} is not ready yet: {replica.address}: {replica.describe()}")
