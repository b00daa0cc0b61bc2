"""The one line of an engine's log that says why it died.

A failure in a worker is reported again by EngineCore and again by the API server, each time
wrapped in "see above"; the cause is the last exception of the deepest process that is not
such a wrapper.
"""

import re
from collections.abc import Iterable
from pathlib import Path

TAIL_BYTES = 256 * 1024
LONGEST = 500  # characters of the line shown

_PREFIX = re.compile(
    r"^(?:\((?P<process>[\w-]+)(?: pid=\d+)?\) )?"
    r"(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?)?"
)
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout|Warning)(?::|$)"
)
_USAGE_ERROR = re.compile(r"^[\w .-]+: error: (?P<message>.+)")
_WRAPPERS = re.compile(
    r"Engine core initialization failed|EngineCore encountered an issue|EngineDeadError"
    r"|WorkerProc initialization failed|Worker failed with error|See root cause above"
    r"|[Ss]ee (?:the )?stack trace|CancelledError|^KeyboardInterrupt|^SystemExit|^EOFError"
    r"|BrokenPipeError"
)
_VALIDATION = re.compile(r"validation errors? for \w+$")
_DEPTH = (("Worker", 3), ("VllmWorker", 3), ("EngineCore", 2), ("APIServer", 1))


def root_cause(lines: Iterable[str]) -> str | None:
    """The cause in one line, or None if no line names one."""
    best: tuple[int, str] | None = None
    unwrapped = [_without_prefix(line) for line in lines]
    for i, (process, text) in enumerate(unwrapped):
        if usage := _USAGE_ERROR.match(text):
            text = usage["message"]
        elif not _EXCEPTION.match(text) or _WRAPPERS.search(text):
            continue
        elif _VALIDATION.search(text) and i + 1 < len(unwrapped):
            # pydantic puts what is wrong on the next line.
            text = unwrapped[i + 1][1].strip().removeprefix("Value error, ")
            text = re.sub(r" \[type=\w+, input_.*", "", text)
        depth = _depth(process)
        if best is None or depth >= best[0]:
            best = (depth, text)
    return _short(best[1]) if best else None


_OUR_ERROR = re.compile(r"^tunan\.errors\.\w+: ")


def root_cause_in(log: Path) -> str | None:
    """The cause found in the last 256 KiB of `log`."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            return root_cause(file.read().decode(errors="replace").splitlines())
    except OSError:
        return None


def _without_prefix(line: str) -> tuple[str, str]:
    match = _PREFIX.match(line)
    if match is None:
        return "", line
    return match["process"] or "", line[match.end() :].rstrip()


def _depth(process: str) -> int:
    return next((depth for name, depth in _DEPTH if process.startswith(name)), 0)


def _short(text: str) -> str:
    # Our own errors are whole sentences; their class says nothing more.
    line = _OUR_ERROR.sub("", " ".join(text.split()))
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."
