"""What a check says: found, needed, and the command that mends it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

Seen = TypeVar("Seen")
Severity = Literal["error", "warning", "note"]
State = Literal["ok", "failed", "warning", "unknown", "note"]

MARKS: dict[State, str] = {
    "ok": "ok",
    "failed": "FAILED",
    "warning": "warning",
    "unknown": "unknown",
    "note": "note",
}


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
class Check(Generic[Seen]):
    """`look` is shown a machine, or several; it gives None where the check does not apply.

    `severity`: what not passing means: an error (the service will not run), a warning (slower, or
    at risk), or only a note.
    """

    id: str
    severity: Severity
    look: Callable[[Seen], Answer | None]


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


def finding(check: Check[Seen], answer: Answer) -> Finding:
    """What `answer` means under the check's severity."""
    severity = answer.severity or check.severity
    states: dict[Severity, State] = {"error": "failed", "warning": "warning", "note": "note"}
    state: State = "ok" if answer.passed else states[severity]
    if answer.passed is None:
        state = "unknown"
    fix = None if answer.passed else answer.fix
    return Finding(check.id, severity, state, answer.found, answer.needed, fix)


def lines_of(findings: Iterable[Finding]) -> list[str]:
    """For people: one line a finding, what is wrong with its fix below."""
    shown = list(findings)
    width = max((len(each.id) for each in shown), default=0)
    lines: list[str] = []
    for each in shown:
        lines.append(f"{MARKS[each.state]:<8} {each.id:<{width}}  {each.found}")
        if each.state != "ok":
            lines.append(f"{'':<9}{'':<{width}}  needed: {each.needed}")
            lines += [f"{'':<9}{'':<{width}}  fix: {each.fix}"] if each.fix else []
    return [printable(line) for line in lines]


def printable(line: str) -> str:
    """What tools print, or another's bundle holds, may have control characters in it, which a
    terminal would obey."""
    return "".join(c if c.isprintable() else " " for c in line)
