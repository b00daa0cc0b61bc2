"""Several gateways that take part in an election of a real etcd, without what they answer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunan.config.etcd import Etcd
from tunan.gateway.election import Election
from tunan.gateway.pool import Pool
from tunan.gateway.replica import HttpAddress, Replica, Stage

PATIENCE_S = 90.0


@dataclass
class Candidate:
    """One gateway's part; `told` is what it said, `leave` makes it go."""

    election: Election
    replica: Replica
    told: list[str]
    leave: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        """As the hook's log has it."""
        return self.election.name


def candidate(name: str, ready: bool = True, **settings: Any) -> Candidate:
    """One that does not run yet; `settings` are those of `gateway.etcd`.

    What is not set is long: a slow machine is not what these tests are about.
    """
    settings = {"lease_s": 60, "hook_timeout_s": 60} | settings
    replica = Replica(HttpAddress("http://127.0.0.1:9"), "replica-0")
    if ready:
        replica.move(Stage.READY)
    told: list[str] = []
    election = Election(Etcd(name=name, **settings), "", Pool([replica]), told.append)
    return Candidate(election, replica, told)


@contextlib.asynccontextmanager
async def running(*candidates: Candidate) -> AsyncIterator[None]:
    """They take part while the block runs."""
    tasks = [asyncio.create_task(one.election.run(one.leave)) for one in candidates]
    try:
        yield
    finally:
        for one in candidates:
            one.leave.set()
        await asyncio.gather(*tasks)


async def until(true: Callable[[], bool]) -> None:
    """Returns once it is so; fails if that does not come."""
    async with asyncio.timeout(PATIENCE_S):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def holder_of(candidates: Sequence[Candidate]) -> Candidate:
    """The one that holds, once there is one; fails if there are two."""
    await until(lambda: any(one.election.holding for one in candidates))
    (holder,) = [one for one in candidates if one.election.holding]
    return holder


def hook(folder: Path, more: str = "") -> list[str]:
    """A program that notes `NAME ACTION` in `folder`/hooks and then does `more` (shell)."""
    script = folder / "hook"
    script.write_text(f'#!/bin/sh\necho "$TUNAN_GATEWAY $1" >> {folder}/hooks\n{more}\n')
    script.chmod(0o755)
    return [str(script)]


def runs(folder: Path) -> list[str]:
    """What the hook noted."""
    noted = folder / "hooks"
    return noted.read_text().splitlines() if noted.exists() else []
