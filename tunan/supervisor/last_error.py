"""The one line of an engine's log that says why it died.

A failure in a worker is reported again by EngineCore and again by the API server, each time
wrapped in "see above"; the cause is the last exception of the deepest process that is not
such a wrapper. A device that fails is another matter: `device_error`.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tunan.diagnosis.log_line import LogLine, log_lines
from tunan.supervisor.device_error import device_cause
from tunan.supervisor.fatal import is_fatal

TAIL_BYTES = 256 * 1024
LONGEST = 500  # characters of the line shown

_USAGE_ERROR = re.compile(r"^[\w .-]+: error: (?P<message>.+)")
_WRAPPERS = re.compile(
    r"Engine core initialization failed|EngineCore encountered an issue|EngineDeadError"
    r"|WorkerProc initialization failed|Worker failed with error|See root cause above"
    r"|[Ss]ee (?:the )?stack trace|CancelledError|^KeyboardInterrupt|^SystemExit|^EOFError"
    r"|BrokenPipeError"
)
_VALIDATION = re.compile(r"validation errors? for \w+$")


def root_cause(lines: Iterable[str]) -> str | None:
    """The cause in one line, or None if no line names one."""
    log = log_lines(lines)
    cause = device_cause(log) or _last_exception(log)
    return _short(cause) if cause else None


def _last_exception(log: Sequence[LogLine]) -> str | None:
    best: tuple[int, str] | None = None
    for index, line in enumerate(log):
        text = line.text
        if usage := _USAGE_ERROR.match(text):
            text = usage["message"]
        elif not line.is_exception or _WRAPPERS.search(text):
            continue
        elif _VALIDATION.search(text) and index + 1 < len(log):
            # pydantic puts what is wrong on the next line.
            text = log[index + 1].text.strip().removeprefix("Value error, ")
            text = re.sub(r" \[type=\w+, input_.*", "", text)
        if best is None or line.depth >= best[0]:
            best = (line.depth, text)
    return best[1] if best else None


_OUR_ERROR = re.compile(r"^tunan\.errors\.\w+: ")


def root_cause_in(log: Path, killed: bool = False) -> str | None:
    """The cause found in the last 256 KiB of `log`.

    `killed`: a signal ended the engine, which then explains more than an error it had before,
    unless it said itself that it could not go on.
    """
    lines = _tail(log)
    if killed and not any(map(is_fatal, lines)):
        return None
    return root_cause(lines)


def usage_error_in(log: Path) -> str | None:
    """What vLLM's command line refused, None if it refused nothing."""
    refused = [match["message"] for line in _tail(log) if (match := _USAGE_ERROR.match(line))]
    return _short(refused[-1]) if refused else None


def _tail(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []


def _short(text: str) -> str:
    # Our own errors are whole sentences; their class says nothing more.
    line = _OUR_ERROR.sub("", " ".join(text.split()))
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."
