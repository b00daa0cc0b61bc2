"""What a log has to say, gathered line by line: known errors, other exceptions, codes, settings."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tunan.diagnosis.codes import codes_in
from tunan.diagnosis.entry import Entry
from tunan.diagnosis.knowledge import Knowledge, Match
from tunan.diagnosis.log_line import LogLine, log_line
from tunan.diagnosis.scan import Candidate
from tunan.diagnosis.settings import note_settings

BLOCK_LINES = 40  # of a traceback and what the device's libraries print below it, interleaved
MOST_FINDINGS = 4096
MOST_SHAPES = 20_000
OFTEN = 64  # lines of one shape that are looked at one by one; of the others only the number counts
MOST_CODES = 64
MOST_NAMES = 4096  # of processes, and of operators

# Lines of no entry that are looked at too.
WORDS = frozenset({"error", "failed", "fatal", "workerasyncoutputcopy"})
_FATAL = re.compile(
    r"(?:EngineCore|WorkerProc) failed to start|EngineCore encountered a fatal error"
    r"|Exception in thread WorkerAsyncOutputCopy"
)
# Exceptions with which a process ends because another one did.
_ENDED = re.compile(r"CancelledError|^KeyboardInterrupt|^SystemExit|^EOFError|BrokenPipeError")
_VALIDATION = re.compile(r"validation errors? for \w+$")
_OWNER = re.compile(r"\(PID:\d+, Device:(?P<device>-?\d+), RankID:(?P<rank>-?\d+)\)")
_DIGITS = bytes(ord("0") if chr(byte).isdecimal() else byte for byte in range(128)) + bytes(
    range(128, 256)
)
_EXPLAINS = ("cause", "general", "vague", "consequence")


@dataclass(frozen=True)
class Place:
    """Where in the logs something stands; what is not known is empty, or None for the device."""

    log: str
    line: int
    process: str = ""
    pid: str = ""
    rank: str = ""
    time: str = ""
    order: int = 0  # of the log among those given

    @property
    def when(self) -> tuple[str, int, int]:
        """Sorts places of several logs by time; those of one log stand in its order anyway."""
        return (self.time or "~", self.order, self.line)  # an unknown time comes last


@dataclass(frozen=True)
class Finding:
    """A known error, or (entry None) an exception that is not known. `text` is the line's."""

    entry: Entry | None
    place: Place
    text: str
    depth: int
    parts: Mapping[str, str] = field(default_factory=dict)
    quiet: bool = False
    fatal: bool = False


@dataclass
class _Writer:
    """What is kept of one process of one log."""

    time: str = ""
    rank: str = ""
    device: str = ""
    fatal: bool = False
    pending: Finding | None = None
    unknown: list[Finding] = field(default_factory=list)


class Findings:
    """Takes the candidates of one log after another, `log` being the name of the one that is read.
    Memory is bounded, however long they are."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.log = ""
        self.knowledge = knowledge
        self.settings: dict[str, float] = {}
        self.counts: Counter[str] = Counter()
        self.fallbacks: Counter[str] = Counter()
        self.codes: dict[str, Place] = {}
        self._known: dict[tuple[str, str, str], Finding] = {}
        self._writers: dict[tuple[str, str, str], _Writer] = {}
        self._shapes: dict[tuple[bytes, frozenset[str]], tuple[int, tuple[Match, ...]]] = {}
        self._orders: dict[str, int] = {}
        self._names: dict[tuple[str, str], str] = {}

    @property
    def known(self) -> list[Finding]:
        """The first of each known error by each process, as the logs have them."""
        return list(self._known.values())

    @property
    def unknown(self) -> list[Finding]:
        """The first exceptions of each process that nothing known explains."""
        return [
            finding
            for writer in self._writers.values()
            for finding in (*writer.unknown, *filter(None, [writer.pending]))
        ]

    def process_of(self, place: Place) -> str:
        """The process's name, also where the line has its number only."""
        return place.process or self._names.get((place.log, place.pid), "")

    def device_of(self, place: Place) -> str:
        """The device that the process said it uses; empty if it did not."""
        return self._writer_of(place).device

    def rank_of(self, place: Place) -> str:
        """The rank of the process, by its name or by what it said."""
        return place.rank or self._writer_of(place).rank

    def _writer_of(self, place: Place) -> _Writer:
        process = self.process_of(place)
        return self._writers.get(_key(place.log, process, place.pid)) or _Writer()

    def take(self, candidate: Candidate) -> bool:
        """Looks at one line; whether it says anything."""
        shape = candidate.line
        if b"CPU" not in shape:  # the names of operators that fell back may differ in digits
            shape = shape.translate(_DIGITS)
        key = (shape, candidate.words)  # among the words are the codes
        times, seen = self._shapes.get(key, (0, ()))
        if times >= OFTEN:
            self._count(seen)
            return True
        if len(self._shapes) >= MOST_SHAPES:
            self._shapes.clear()
        matches, says = self._look(candidate)
        if says:
            self._shapes[key] = (times + 1, matches)
            self._count(matches)
        return says

    def _count(self, matches: tuple[Match, ...]) -> None:
        for match in matches:
            self.counts[match.entry.id] += 1
            if match.entry.id == "operator-on-cpu" and len(self.fallbacks) < MOST_NAMES:
                self.fallbacks[match.parts["operator"]] += 1

    def _look(self, candidate: Candidate) -> tuple[tuple[Match, ...], bool]:
        log, line = self.log, log_line(candidate.line.decode(errors="replace"))
        writer = self._writer(line)
        if line.process and line.pid and len(self._names) < MOST_NAMES:
            self._names.setdefault((log, line.pid), line.process)
        writer.time = line.time or writer.time
        fatal = bool(_FATAL.search(line.text))
        writer.fatal = writer.fatal or fatal
        owner = _OWNER.search(line.text)
        if owner:
            writer.device = owner["device"].replace("-1", "")
            writer.rank = owner["rank"].replace("-1", "")
        noted = note_settings(line.text, self.settings)
        place = Place(
            log,
            candidate.number,
            line.process,
            line.pid,
            line.rank,
            writer.time,
            self._orders.setdefault(log, len(self._orders)),
        )
        matches = tuple(self.knowledge.matches(line.text, candidate.words))
        self._keep(line, place, matches)
        followed = self._follow_exception(writer, line, place, matches)
        return matches, bool(matches or followed or fatal or owner or noted)

    def _writer(self, line: LogLine) -> _Writer:
        key = _key(self.log, line.process, line.pid)
        if len(self._writers) >= MOST_NAMES:
            return self._writers.get(key) or _Writer()
        return self._writers.setdefault(key, _Writer())

    def _keep(self, line: LogLine, place: Place, matches: tuple[Match, ...]) -> None:
        if not line.is_quiet and len(self.codes) < MOST_CODES:
            for code in codes_in(line.text):
                self.codes.setdefault(code, place)
        for match in matches:
            quiet = line.is_quiet and not match.entry.any_level
            key = (match.entry.id, place.log, f"{place.process}{'?' if quiet else ''}")
            known = self._known.get(key)
            if known is None:
                if len(self._known) < MOST_FINDINGS:
                    self._known[key] = Finding(
                        match.entry, place, line.text.strip(), line.depth, match.parts, quiet
                    )
            elif (
                len(match.parts) > len(known.parts)
                and place.line - known.place.line <= BLOCK_LINES
                and place.pid in ("", known.place.pid)
            ):
                # Of one failure the line that says most is shown.
                self._known[key] = replace(known, text=line.text.strip(), parts=match.parts)

    def _follow_exception(
        self, writer: _Writer, line: LogLine, place: Place, matches: tuple[Match, ...]
    ) -> bool:
        """Whether the line is an exception's, or tells more of the one before."""
        pending = writer.pending
        explained = any(match.entry.kind in _EXPLAINS for match in matches) and not line.is_quiet
        if pending and place.line - pending.place.line <= BLOCK_LINES:
            if explained:
                writer.pending = None
            elif _VALIDATION.search(pending.text) and not line.is_exception:
                # pydantic puts what is wrong on the next line.
                text = line.text.strip().removeprefix("Value error, ")
                text = re.sub(r" \[type=\w+, input_.*", "", text)
                writer.pending = replace(pending, text=text)
                return True
        if not line.is_exception or line.is_quiet or matches or _ENDED.search(line.text):
            return False
        if writer.pending:
            _add(writer.unknown, writer.pending)
        writer.pending = Finding(None, place, line.text.strip(), line.depth, fatal=writer.fatal)
        return True


def _key(log: str, process: str, pid: str) -> tuple[str, str, str]:
    """Of Ray's workers all have one name; what has none may be anybody's."""
    return log, process, pid if process else ""


def _add(unknown: list[Finding], finding: Finding) -> None:
    """Of each process the first exception is kept, and the first after it said that it is over."""
    if not unknown or (finding.fatal and not any(other.fatal for other in unknown)):
        unknown.append(finding)
