"""What the front door knows of the engine behind it: where it listens and how far it is."""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class Stage(StrEnum):
    """The life of a replica, in order."""

    STARTING = "starting"
    LOADING = "loading"
    COMPILING = "compiling"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


# Seconds a client should wait before it asks again.
RETRY_AFTER = {
    Stage.STARTING: 3,
    Stage.LOADING: 3,
    Stage.COMPILING: 5,
    Stage.WARMING: 1,
    Stage.DRAINING: 10,
    Stage.FAILED: 10,
}


@dataclass
class Replica:
    """One engine: its Unix socket, its stage with progress, and the requests it is answering."""

    socket: Path
    stage: Stage = Stage.STARTING
    done: int = 0
    total: int = 0
    problem: str = ""
    in_flight: int = field(default=0, init=False)
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    @property
    def ready(self) -> bool:
        """Whether a request may be sent to it now."""
        return self.stage is Stage.READY

    @property
    def progress(self) -> tuple[Stage, int]:
        """How far it is: what changes while a start goes on."""
        return self.stage, self.done

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Counts one request in `in_flight` while the block runs."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1
            self._changed.set()

    async def empty(self) -> None:
        """Returns once no request is in flight."""
        while self.in_flight:
            self._changed.clear()
            await self._changed.wait()

    def move(self, stage: Stage, done: int = 0, total: int = 0, problem: str = "") -> None:
        """Enters `stage`; draining and failed are final except that draining may fail."""
        if self.stage is Stage.FAILED or (
            self.stage is Stage.DRAINING and stage is not Stage.FAILED
        ):
            return
        self.stage, self.done, self.total, self.problem = stage, done, total, problem

    def describe(self) -> str:
        """The stage in words: `loading 3/12 blocks`, `warming 5/100`."""
        if self.stage is Stage.LOADING:
            return f"loading {self.done}/{self.total} blocks"
        if self.stage is Stage.COMPILING:
            return "compiling (up to some minutes at the first start, then cached)"
        if self.stage is Stage.WARMING:
            return f"warming {self.done}/{self.total}"
        return f"{self.stage}: {self.problem}" if self.problem else str(self.stage)
