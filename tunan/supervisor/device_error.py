"""The cause in what torch_npu and CANN print when a device fails.

Their exception names the call that noticed it; what happened is in CANN's own message, which
comes below it or, as a warning, above it:

    RuntimeError: synchronize:../torch_npu/.../NPUEvent.cpp:203 NPU function error: HBM ... ERROR.
    EZ9999[PID: 7] 2026-11-30-21:25:27.880.854 (EZ9999):  The error from device(chipId:0, ...
    time is , error code is 507054
    [ERROR] 2026-11-30-21:25:27 (PID:7, Device:0, RankID:-1) ERR00100 PTA call acl api failed.

After the first such error every later call fails too, so the first is the cause. Ranks that time
out waiting for each other all say so; the one with CANN's message says most.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tunan.diagnosis.log_line import LogLine

BELOW = 12  # lines that may belong to an exception
_OF_DEVICE = re.compile(
    r"NPU function error|NPU out of memory|ACL stream synchronize failed|libopapi\.so"
    r"|Inner error is reported|ERR0\d{4} |error code is \d{6}"
)
_CANN = re.compile(
    r"(?:(?P<code>E[A-Z]\d{4})(?:: ?)?)?\[PID: (?P<pid>\d+)\] \S+ "
    r"(?:\w*\((?P<inner>E[A-Z]\d{4})\): *)?(?P<text>.+)"
)
_NOISE = re.compile(
    r"^(?:\w+\.)*\w+Error: |(?:(?<=: )|^)\w+(?:\(\))?:\.\./\S+:\d+ "
    r"|\.?(?:E[A-Z]\d{4}: Inner Error!|time is ,).*|\.?\s*If reserved memory is >> .*"
)
_OPERATOR = re.compile(r"current working operator name is (?P<name>\w+)")
_STATUS = re.compile(r"error code is (?P<status>\d{6})")
# A rank that waits for one that failed.
_CONSEQUENCE = re.compile(r"EI000\d|HCCL|hccl|507048")


def device_cause(lines: Sequence[LogLine]) -> str | None:
    """What the device's own libraries say of the first failure; None if no device failed."""
    found = [
        (line.depth, _cause(lines, index))
        for index, line in enumerate(lines)
        if line.is_exception and _OF_DEVICE.search(" ".join(_below(lines, index)))
    ]
    if not found:
        return None
    deepest = max(depth for depth, _ in found)
    causes = [cause for depth, cause in found if depth == deepest]
    first = next((cause for cause in causes if not _CONSEQUENCE.search(str(cause))), None)
    return str(first or next((cause for cause in causes if cause.detail), causes[0]))


def _below(lines: Sequence[LogLine], index: int) -> list[str]:
    """The exception's line and what belongs to it."""
    here = lines[index]
    texts = [here.text]
    for line in lines[index + 1 : index + BELOW]:
        if line.process != here.process:
            continue
        if line.is_exception or line.text.startswith("Traceback"):
            break
        texts.append(line.text)
    return texts


@dataclass(frozen=True)
class _Cause:
    """The call that failed, and what CANN said of it, if anything."""

    head: str
    detail: str

    def __str__(self) -> str:
        return f"{self.head}: {self.detail}" if self.detail else self.head


def _cause(lines: Sequence[LogLine], index: int) -> _Cause:
    below = _below(lines, index)
    head = _head(below)
    detail = _message(below) or ("" if "out of memory" in head else _message_above(lines, index))
    return _Cause(head, detail)


def _head(below: Sequence[str]) -> str:
    whole = " ".join(below)
    if operator := _OPERATOR.search(whole):
        return f"operator {operator['name']} failed"
    head = _NOISE.sub("", below[0]).strip(" .")
    status = _STATUS.search(whole)
    return f"{head} (error code {status['status']})" if status and status[0] not in head else head


def _message(texts: Sequence[str]) -> str:
    """The first of CANN's messages, as `EZ9999: The error from device(...)`."""
    return next((_worded(match) for text in texts if (match := _CANN.search(text))), "")


def _message_above(lines: Sequence[LogLine], index: int) -> str:
    """The last message before: it was written as a warning, by the thread that met the error."""
    for line in reversed(lines[:index]):
        if (match := _CANN.search(line.text)) and lines[index].pid in ("", match["pid"]):
            return _worded(match)
    return ""


def _worded(match: re.Match[str]) -> str:
    code, message = match["code"] or match["inner"], match["text"].strip(" .")
    return f"{code}: {message}" if code else message
