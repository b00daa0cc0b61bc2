"""What the front door knows of one engine behind it: where it listens, how far it is, its load."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


@dataclass(frozen=True)
class UnixAddress:
    """An engine on this machine: its Unix socket."""

    path: Path

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True)
class HttpAddress:
    """An engine started elsewhere: `http://host:port` or `https://host:port`, no path."""

    url: str

    def __str__(self) -> str:
        return self.url


Address = UnixAddress | HttpAddress
Cut = Callable[[str, bool], None]  # the reason, and whether it is planned


class Role(StrEnum):
    """A standby is ready as any other, but asked only while no active replica is ready."""

    ACTIVE = "active"
    STANDBY = "standby"


class Stage(StrEnum):
    """The life of a replica, in order; from `DOWN` it begins again.

    `AWAY`: it was started elsewhere, if at all, and has not answered yet.
    """

    AWAY = "away"
    STARTING = "starting"
    LOADING = "loading"
    COMPILING = "compiling"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    DOWN = "down"
    FAILED = "failed"


# Seconds a client should wait before it asks again.
RETRY_AFTER = {
    Stage.AWAY: 3,
    Stage.STARTING: 3,
    Stage.LOADING: 3,
    Stage.COMPILING: 5,
    Stage.WARMING: 1,
    Stage.DRAINING: 10,
    Stage.DOWN: 3,
    Stage.FAILED: 10,
}
# What may follow a stage that is not simply passed through.
_FINAL = {Stage.FAILED: frozenset[Stage](), Stage.DRAINING: frozenset({Stage.FAILED})}

# Events before the rhythm of the tokens shows: the head, the role, the first token.
FIRST_EVENTS = 3
INTERVAL_WEIGHT = 0.1  # of the newest gap in the mean
# A longer gap than so many means, and than so many seconds, counts as that: one is no new rhythm.
LONGEST_GAP, LONGEST_GAP_S = 4, 0.5


@dataclass(eq=False)
class Answer:
    """One request that a replica is answering: what it still owes, and how it is told of a loss.

    `tokens` is an estimate of the prompt and of what may be generated. While it waits for the
    replica `waiting_since` is the loop's time when that began; `interval_s` is the mean time
    between two of its events, 0 before the second.
    """

    replica: "Replica"
    tokens: int
    cut: Cut | None = None
    waiting_since: float | None = None
    events: int = 0
    generating: bool = False  # tokens come: silence is not the reading of its prompt any more
    steady: bool = False  # each token is an event at once: then silence says something
    by_model: bool = True  # it takes the model to answer, not only the server before it
    interval_s: float = 0.0

    def paid(self, tokens: int) -> None:
        """`tokens` of the estimate have been worked off."""
        self.generating = self.generating or tokens > 0
        tokens = min(tokens, self.tokens)
        self.tokens -= tokens
        self.replica.outstanding_tokens -= tokens

    def heard(self, now: float, body: bool = True) -> None:
        """Something came, at the loop's time `now`; `body`: of an answer that is no refusal."""
        gap = now - self.waiting_since if self.waiting_since is not None else 0.0
        self.waiting_since = None
        self.events += 1
        if body and self.by_model:
            self.replica.heard_at = now
        self.generating = self.generating or self.events >= FIRST_EVENTS
        if self.events > FIRST_EVENTS:
            mean = self.interval_s or gap
            gap = min(gap, max(LONGEST_GAP * mean, LONGEST_GAP_S))
            self.interval_s = mean + (gap - mean) * INTERVAL_WEIGHT


@dataclass(eq=False)
class Replica:
    """One engine: its address, role and stage with progress, and the requests it is answering."""

    address: Address
    name: str = "replica-0"
    role: Role = Role.ACTIVE
    stage: Stage = Stage.STARTING
    done: int = 0
    total: int = 0
    problem: str = ""
    held: bool = False  # an operator wants nothing sent to it
    frozen: str = ""  # which of its processes is stopped; whoever started it sees that
    frozen_since: float = 0.0  # the loop's time
    in_flight: int = field(default=0, init=False)
    outstanding_tokens: int = field(default=0, init=False)
    heard_at: float = field(default=0.0, init=False)  # the loop's time of its model's last sign
    worked_at: float = field(default=0.0, init=False)  # and of the last that its metrics told
    # Called with the replica and the reason when it is lost, and with it alone on any change.
    on_lost: list[Callable[["Replica", str], None]] = field(default_factory=list, init=False)
    on_change: list[Callable[["Replica"], None]] = field(default_factory=list, init=False)
    _answers: set[Answer] = field(default_factory=set, init=False)
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        """Nobody here starts what is elsewhere."""
        if isinstance(self.address, HttpAddress) and self.stage is Stage.STARTING:
            self.stage = Stage.AWAY

    @property
    def ready(self) -> bool:
        """Whether a request may be sent to it now."""
        return self.stage is Stage.READY and not self.held

    def hold(self, held: bool) -> None:
        """Sends nothing new to it from now on, or again; what runs on it goes on."""
        self.held = held
        self._tell()

    def freeze(self, what: str, now: float) -> None:
        """Processes of it are stopped since the loop's time `now`: `what` says which; "": none."""
        self.frozen, self.frozen_since = what, now

    @property
    def progress(self) -> tuple[Stage, int]:
        """How far it is: what changes while a start goes on."""
        return self.stage, self.done

    @contextlib.contextmanager
    def answering(self, tokens: int = 0, cut: Cut | None = None) -> Iterator[Answer]:
        """Counts one request while the block runs; `cut(reason, planned)`: it is lost."""
        answer = Answer(self, tokens, cut)
        self._answers.add(answer)
        self.in_flight += 1
        self.outstanding_tokens += tokens
        try:
            yield answer
        finally:
            answer.paid(answer.tokens)
            self._answers.discard(answer)
            self.in_flight -= 1
            self._tell()

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The requests it is answering."""
        return tuple(self._answers)

    async def empty(self) -> None:
        """Returns once no request is in flight."""
        while self.in_flight:
            self._changed.clear()
            await self._changed.wait()

    def move(self, stage: Stage, done: int = 0, total: int = 0, problem: str = "") -> None:
        """Enters `stage`; draining and failed are final except that draining may fail."""
        if stage not in _FINAL.get(self.stage, frozenset({stage})):
            return
        self._enter(stage, done, total, problem)

    def restart(self) -> None:
        """Begins again, from whatever stage: only whoever starts the engine calls this."""
        self.frozen = ""
        self._enter(Stage.STARTING)

    def lose(self, reason: str, *, planned: bool = False) -> None:
        """It is gone, whoever noticed first: nothing more is sent to it, what runs on it is cut.

        `planned`: it is taken away, and did not die of what it answered. Calling it again changes
        nothing. The listeners of `on_lost` hear of it once.
        """
        if self.stage in (Stage.DOWN, Stage.FAILED):
            return
        self._enter(Stage.DOWN, problem=reason)
        for answer in list(self._answers):
            if answer.cut:
                answer.cut(reason, planned)
        for listener in list(self.on_lost):
            listener(self, reason)

    def _enter(self, stage: Stage, done: int = 0, total: int = 0, problem: str = "") -> None:
        self.stage, self.done, self.total, self.problem = stage, done, total, problem
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        for listener in list(self.on_change):
            listener(self)

    def describe(self) -> str:
        """The stage in words: `loading 3/12 blocks`, `warming 5/100`."""
        if self.stage is Stage.LOADING:
            return f"loading {self.done}/{self.total} blocks"
        if self.stage is Stage.COMPILING:
            return "compiling (up to some minutes at the first start, then cached)"
        if self.stage is Stage.WARMING:
            return f"warming {self.done}/{self.total}"
        return f"{self.stage}: {self.problem}" if self.problem else str(self.stage)
