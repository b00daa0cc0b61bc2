"""What a check says: found, needed, and the command that mends it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tunan.doctor.subject import Subject

Severity = Literal["error", "warning", "note"]
State = Literal["ok", "failed", "warning", "unknown", "note"]


@dataclass(frozen=True)
class Answer:
    """`passed` is None where it could not be found out; `fix` is a command or what to do.

    `severity` replaces the check's own where this answer weighs less.
    """

    passed: bool | None
    found: str
    needed: str
    fix: str | None = None
    severity: Severity | None = None


@dataclass(frozen=True)
class Check:
    """`look` gives None where the check does not apply. `severity`: what not passing means:
    an error (the service will not run), a warning (slower, or at risk), or only a note."""

    id: str
    severity: Severity
    look: Callable[["Subject"], Answer | None]


@dataclass(frozen=True)
class Finding:
    """The answer of one check."""

    id: str
    severity: Severity
    state: State
    found: str
    needed: str
    fix: str | None

    @property
    def blocks(self) -> bool:
        """Whether the service will not run because of it."""
        return self.state == "failed"


def finding(check: Check, answer: Answer) -> Finding:
    """What `answer` means under the check's severity."""
    severity = answer.severity or check.severity
    states: dict[Severity, State] = {"error": "failed", "warning": "warning", "note": "note"}
    state: State = "ok" if answer.passed else states[severity]
    if answer.passed is None:
        state = "unknown"
    fix = None if answer.passed else answer.fix
    return Finding(check.id, severity, state, answer.found, answer.needed, fix)
