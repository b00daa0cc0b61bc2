"""A line of a log taken apart: who wrote it, when, at which level, and what it says."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

# ECMA-48: colours, and what progress bars and terminals move the cursor with.
_CONTROL = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|[()][0-9A-B])")
# What Kubernetes, Docker, journald, `kubectl logs --prefix`, docker compose, mpirun and torchrun
# put before a line.
_UNIT = r"\S+ [\w./@-]+(?:\[\d+\])?: "
_CARRIER = re.compile(
    rf"^(?:\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d\S* (?:std(?:out|err) [FP] |{_UNIT})?"
    rf"|[A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)? {_UNIT}"
    r"|\[pod/[\w./-]+\] "
    r"|\[\d+,\d+\]<std(?:out|err)>: ?"
    r"|\[default\d+\]: ?"
    r"|[\w.-]+ +\| )+"
)
# A process's name; before vLLM 0.11 its place follows: `VllmWorker TP0`, `VllmWorker rank=0`.
_NAME = r"[\w-]+(?: (?:[A-Z]+|rank=)\d+)*"
# Of a line that begins with something else, where a process says its name.
_NAMED = re.compile(rf"\((?=[A-Za-z]){_NAME} pid=\d+(?:, ip=[\w.:]+)?\) ")
LONGEST_PREFIX = 200  # characters before that
# Ray hands a worker's lines on with its own name before theirs: the last one wrote it.
# Up to vLLM 0.7 the place in the code had no bracket before it.
_PREFIX = re.compile(
    rf"^(?:\({_NAME} pid=\d+(?:, ip=[\w.:]+)?\) (?=\({_NAME} pid=))*"
    rf"(?:\((?P<process>{_NAME})(?: pid=(?P<pid>\d+))?(?:, ip=[\w.:]+)?\) )?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<time>\d\d-\d\d \d\d:\d\d:\d\d)"
    r" (?:\[[^\]]*|[\w.]+:\d+)\] ?)?"
)
# torchrun's and PyTorch's own: `[rank3]: text`, `[rank3]:[W1130 21:25:20.36 File.cpp:1] text`.
_TORCH = re.compile(
    r"^(?:\[rank(?P<rank>\d+)\]: ?)?"
    r"(?:\[(?P<level>[DIWEF])(?P<month>\d\d)(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d)"
    r"\.\d+ [^\]]*\] ?)?"
)
# CANN's and torch_npu's own (`[ERROR] RUNTIME(7,python):...`), uvicorn's (`INFO:     Started`).
_BARE_LEVEL = re.compile(r"^\[?(?P<level>DEBUG|INFO|EVENT|WARNING)(?:\]|:)[ \w(]")
_CANN_PID = re.compile(r"\[PID: (?P<pid>\d+)\]")
_CANN_TIME = re.compile(r"\b\d{4}-(\d\d-\d\d)-(\d\d:\d\d:\d\d)\b")
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout|Warning)(?::|$)"
    r"|^(?:\w+\.)+(?:exc|exceptions?|errors?)\.[A-Z]\w*(?::|$)"  # torch._dynamo.exc.Unsupported
)
_DEPTH = (
    ("Worker", 3),
    ("VllmWorker", 3),
    ("RayWorker", 3),
    ("NPURayWorker", 3),
    ("EngineCore", 2),
    ("APIServer", 1),
)
_LEVELS = {
    "D": "DEBUG",
    "I": "INFO",
    "W": "WARNING",
    "E": "ERROR",
    "F": "CRITICAL",
    "EVENT": "INFO",
}
_QUIET = ("DEBUG", "INFO", "WARNING")


@dataclass(frozen=True)
class LogLine:
    """`process` as vLLM names it ("EngineCore", "Worker_TP0"; empty if it does not say).

    `text` is without that and without the logger's own prefix. `pid`, `rank`, `time`
    (`MM-DD HH:MM:SS`) and `level` are empty where they are not said.
    """

    process: str
    text: str
    pid: str = ""
    rank: str = ""
    time: str = ""
    level: str = ""

    @property
    def depth(self) -> int:
        """How far below the API server the process is; the deepest knows the cause."""
        found = next((depth for name, depth in _DEPTH if self.process.startswith(name)), 0)
        return found or (3 if self.rank else 0)

    @property
    def is_exception(self) -> bool:
        """Whether it is the line of a Python exception that ends a traceback."""
        return bool(_EXCEPTION.match(self.text))

    @property
    def is_quiet(self) -> bool:
        """Whether it was logged as something less than an error."""
        return self.level in _QUIET


def log_lines(lines: Iterable[str]) -> list[LogLine]:
    """Each line taken apart."""
    return [log_line(line) for line in lines]


def log_line(line: str) -> LogLine:
    """One line, taken apart."""
    text = _out_of_json(line) if line.startswith("{") else line
    text = _CONTROL.sub("", text) if "\x1b" in text else text
    if "\r" in text:  # a progress bar, written over again and again
        text = text.rstrip("\r").rpartition("\r")[2]
    if carrier := _CARRIER.match(text):
        text = text[carrier.end() :]
    if not text.startswith("(") and (named := _NAMED.search(text, 0, LONGEST_PREFIX)):
        text = text[named.start() :]
    prefix = _PREFIX.match(text)
    if prefix is None:
        return LogLine("", text)
    text = text[prefix.end() :].rstrip()
    torch = _TORCH.match(text)
    rank = level = time = ""
    if torch:
        rank, level = torch["rank"] or "", _LEVELS.get(torch["level"] or "", "")
        time = f"{torch['month']}-{torch['day']} {torch['clock']}" if torch["month"] else ""
        text = text[torch.end() :]
    if not (prefix["level"] or level) and (bare := _BARE_LEVEL.match(text)):
        level = _LEVELS.get(bare["level"], bare["level"])
    if not (prefix["time"] or time) and (said := _CANN_TIME.search(text)):
        time = f"{said[1]} {said[2]}"
    cann = _CANN_PID.search(text) if "[PID: " in text else None
    return LogLine(
        process=prefix["process"] or "",
        text=text,
        pid=prefix["pid"] or (cann["pid"] if cann else ""),
        rank=rank,
        time=prefix["time"] or time,
        level=prefix["level"] or level,
    )


# Docker's json-file driver and collectors of logs, journald's `-o json`, programs' own loggers.
_MEMBER = re.compile(r'"(?:log|message|msg|MESSAGE)" ?: ?"(?P<text>(?:[^"\\]|\\.)*)')


def _out_of_json(line: str) -> str:
    """The line that is wrapped in an object, also where the object is cut."""
    member = _MEMBER.search(line)
    if member is None:
        return line
    try:
        text = str(json.loads(f'"{member["text"]}"', strict=False))
    except ValueError:  # cut within an escape, or none that there is
        text = member["text"]
    return text.rstrip("\n")
