"""Runs the tools that are asked, bounded in time, never two of the same name at once.

npu-smi can hang for minutes when a driver is stuck, and a second one beside it hangs as well.
One that cannot even be killed (it waits in the kernel) must not be joined by another at every
reading. This module is also sent over ssh (see `looking`): Python 3.8, nothing but its own library.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TIMEOUTS = {"npu-smi": 15.0, "hccn_tool": 10.0}
OTHER_TIMEOUT = 5.0
MOST_OUTPUT = 1 << 20  # characters
_GRACE = 1.0


@dataclass(frozen=True)
class Ran:
    """`status` is None where it did not end by itself; then `error` says why."""

    status: int | None
    output: str
    error: str | None = None


class _Tool:
    """One program name: its lock, the process of it that runs, and one that could not be ended."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running: subprocess.Popen[bytes] | None = None
        self.stuck: subprocess.Popen[bytes] | None = None


class _Ends:
    """How often `end_running` was called: what was only being started then is ended too."""

    count = 0


_tools: dict[str, _Tool] = {}
_tools_lock = threading.Lock()


def run(
    arguments: Sequence[str], environment: Mapping[str, str], timeout: float | None = None
) -> Ran:
    """Runs a program without input and returns what it printed on both streams.

    Waits for another one of the same name as long as that one may take. Never raises.
    """
    name = os.path.basename(arguments[0])  # noqa: PTH119
    limit = timeout if timeout is not None else TIMEOUTS.get(name, OTHER_TIMEOUT)
    with _tools_lock:
        tool = _tools.setdefault(name, _Tool())
    if not tool.lock.acquire(timeout=limit + 2 * _GRACE):
        return Ran(None, "", f"{name} is being asked by someone else and does not end")
    try:
        return _run(tool, name, arguments, environment, limit)
    finally:
        tool.running = None
        tool.lock.release()


def end_running() -> None:
    """Ends what `run` waits for in other threads, before this process ends: the next one would
    ask beside a tool that hangs. May be called in a signal handler."""
    _Ends.count += 1
    for tool in tuple(_tools.values()):
        if process := tool.running:
            _kill(process)


def _run(
    tool: _Tool,
    name: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    limit: float,
) -> Ran:
    if tool.stuck is not None and tool.stuck.poll() is None:
        return Ran(None, "", f"{name} hangs since an earlier call (process {tool.stuck.pid})")
    tool.stuck = None
    ends = _Ends.count
    try:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**environment, "LC_ALL": "C"},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return Ran(None, "", f"{name}: {reason}")
    try:
        tool.running = process
        if _Ends.count != ends:
            _kill(process)
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        return _end(tool, name, process, limit)
    except BaseException:  # Ctrl-C
        _end(tool, name, process, limit)
        raise
    text = output.decode("utf-8", errors="replace")[:MOST_OUTPUT]
    return Ran(process.returncode, text)


def _end(tool: _Tool, name: str, process: subprocess.Popen[bytes], limit: float) -> Ran:
    _kill(process)
    try:
        process.communicate(timeout=_GRACE)
    except subprocess.TimeoutExpired:
        tool.stuck = process
        if process.stdout:
            process.stdout.close()
        return Ran(None, "", f"{name} gave no answer in {limit:g} s and cannot be ended")
    return Ran(None, "", f"{name} gave no answer in {limit:g} s")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With all that it started: it leads a session of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
