"""A line of the engine's log, with the process that wrote it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_PREFIX = re.compile(
    r"^(?:\((?P<process>[\w-]+)(?: pid=(?P<pid>\d+))?\) )?"
    r"(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?)?"
)
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout|Warning)(?::|$)"
)
_DEPTH = (("Worker", 3), ("VllmWorker", 3), ("EngineCore", 2), ("APIServer", 1))


@dataclass(frozen=True)
class LogLine:
    """`process` as vLLM names it ("EngineCore", "Worker_TP0"; empty if it does not say).

    `text` is without that and without the logger's own prefix; `pid` empty where it is not said.
    """

    process: str
    text: str
    pid: str = ""

    @property
    def depth(self) -> int:
        """How far below the API server the process is; the deepest knows the cause."""
        return next((depth for name, depth in _DEPTH if self.process.startswith(name)), 0)

    @property
    def is_exception(self) -> bool:
        """Whether it is the line of a Python exception that ends a traceback."""
        return bool(_EXCEPTION.match(self.text))


def log_lines(lines: Iterable[str]) -> list[LogLine]:
    """Each line taken apart."""
    return [_taken_apart(line) for line in lines]


def _taken_apart(line: str) -> LogLine:
    match = _PREFIX.match(line)
    if match is None:
        return LogLine("", line)
    return LogLine(match["process"] or "", line[match.end() :].rstrip(), match["pid"] or "")
