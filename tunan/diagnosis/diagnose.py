"""From logs to a diagnosis: reads them, and chooses the cause among what they say.

A cause beats what it explains better: a general error, a vague one, then a rank that waited in
vain for another. An exception that is not known stands with the general ones if it ended a worker
or the engine. What only repeats (messengers) or stops nothing (notices) is never the cause. Among
equals the earliest is, but the API server, which hears of everything last, only if no other
process spoke.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from tunan.diagnosis.advice import Advice, advice_for
from tunan.diagnosis.codes import Code, decode
from tunan.diagnosis.findings import WORDS, Finding, Findings, Place
from tunan.diagnosis.knowledge import Knowledge, knowledge
from tunan.diagnosis.scan import Extent, Scan
from tunan.diagnosis.settings import WORDS as SETTINGS_WORDS

Verdict = Literal["known", "unknown", "clean"]
When = Callable[[Place], tuple[str, int, int]]

_ORDER = {"cause": 0, "general": 1, "vague": 2, "consequence": 3}
_UNKNOWN_AND_FATAL = 1
_UNKNOWN_WITHOUT_NAME = 2  # a process that ended before it had a logger
_UNKNOWN = 4  # of the API server: mostly of one request


@dataclass(frozen=True)
class Diagnosis:
    """What logs say went wrong.

    `verdict`: the cause is known, an error is there that is not known, or there is none. `cause` is
    the finding chosen; `first` the one of the rank that failed first (None without an error);
    `others` are further causes; `repeated` counts what was stepped over, by entry;
    `notices` what stops nothing; `fallbacks` operators that ran on the CPU.
    """

    verdict: Verdict
    cause: Finding | None
    first: Finding | None
    others: tuple[Finding, ...]
    advice: tuple[Advice, ...]
    codes: tuple[Code, ...]
    repeated: dict[str, int]
    notices: dict[str, int]
    fallbacks: dict[str, int]
    settings: dict[str, float]
    lines: int
    size: int  # bytes
    findings: Findings

    @property
    def id(self) -> str:
        """The entry's name, empty if the cause is not known."""
        return self.cause.entry.id if self.cause and self.cause.entry else ""

    def where(self, finding: Finding) -> dict[str, str | int]:
        """Log, line, process, pid, rank, device and time of a finding, as far as they are known."""
        place = finding.place
        said: dict[str, str | int] = {
            "log": place.log,
            "line": place.line,
            "process": self.findings.process_of(place),
            "pid": place.pid,
            "rank": self.findings.rank_of(place),
            "device": self.findings.device_of(place),
            "time": place.time,
        }
        return {name: value for name, value in said.items() if value != ""}


def diagnose(logs: Sequence[Path]) -> Diagnosis:
    """Reads the logs of one run (of several machines, in any order). Raises OSError, UsageError."""
    with ExitStack() as open_files:
        return diagnose_streams(
            (str(log), open_files.enter_context(log.open("rb"))) for log in logs
        )


def diagnose_streams(logs: Iterable[tuple[str, BinaryIO]]) -> Diagnosis:
    """Reads streams of bytes, each with the name it is called by in the answer."""
    known = knowledge()
    findings = Findings(known)
    scan = Scan(known.words | WORDS | SETTINGS_WORDS, findings.take)
    for name, file in logs:
        findings.log = name
        scan.read(file, name)
    return _judged(findings, scan.extent, known)


def _judged(findings: Findings, extent: Extent, known: Knowledge) -> Diagnosis:
    when = _clock_of([finding.place for finding in (*findings.known, *findings.unknown)])
    errors = [finding for finding in findings.known if _is_error(finding)] + findings.unknown
    errors.sort(key=lambda finding: _rank(finding, when))
    cause = errors[0] if errors else None
    kinds = {entry.id: entry.kind for entry in known.entries}
    counts = findings.counts
    repeated = {name: counts[name] for name in sorted(counts) if kinds[name] == "messenger"}
    codes = tuple(filter(None, map(decode, findings.codes)))
    return Diagnosis(
        verdict=_verdict(cause, bool(repeated or codes)),
        cause=cause,
        first=_first_to_fail(cause, errors, when),
        others=_others(cause, errors),
        advice=advice_for(cause, findings) if cause else (),
        codes=codes,
        repeated=repeated,
        notices={name: counts[name] for name in sorted(counts) if kinds[name] == "notice"},
        fallbacks=dict(findings.fallbacks.most_common()),
        settings=findings.settings,
        lines=extent.lines,
        size=extent.size,
        findings=findings,
    )


def _is_error(finding: Finding) -> bool:
    return finding.entry is not None and finding.entry.kind in _ORDER and not finding.quiet


def _rank(finding: Finding, when: When) -> tuple[int, bool, bool, tuple[str, int, int]]:
    if finding.entry:
        order = _ORDER[finding.entry.kind]
    elif finding.depth > 1 or finding.fatal:
        order = _UNKNOWN_AND_FATAL
    else:
        order = _UNKNOWN if finding.place.process else _UNKNOWN_WITHOUT_NAME
    # EngineCore also logs exceptions that are one request's, before it gives up over another.
    survived = finding.entry is None and not finding.fatal and finding.depth < 3
    return order, finding.depth == 1, survived, when(finding.place)


def _clock_of(places: Sequence[Place]) -> When:
    """One log stands in the order of time; several are put in order by what they say of it, which
    is a day without its year."""
    if len({place.log for place in places}) < 2:
        return lambda place: ("", 0, place.line)
    new_year = {"12-", "01-"} <= {place.time[:3] for place in places}

    def when(place: Place) -> tuple[str, int, int]:
        time, order, line = place.when
        return (
            time.replace("01-", "13-", 1) if new_year and time[:3] == "01-" else time,
            order,
            line,
        )

    return when


def _verdict(cause: Finding | None, said_to_fail: bool) -> Verdict:
    """`said_to_fail`: without a cause, but by messengers or a code."""
    if cause is None:
        return "unknown" if said_to_fail else "clean"
    return "known" if cause.entry else "unknown"


def _first_to_fail(cause: Finding | None, errors: list[Finding], when: When) -> Finding | None:
    """The earliest of the ranks and the engine, or the cause where that came before them."""
    ranks = [finding for finding in errors if finding.depth >= 2 or finding is cause] or errors
    return min(ranks, key=lambda f: (when(f.place), -f.depth), default=None)


def _others(cause: Finding | None, errors: list[Finding]) -> tuple[Finding, ...]:
    """Further causes, each once."""
    others: dict[str, Finding] = {}
    for finding in errors:
        entry = finding.entry
        if entry and entry.kind == "cause" and (not cause or entry != cause.entry):
            others.setdefault(entry.id, finding)
    return tuple(others.values())
