"""Hears in the engine's log that it cannot go on, where its processes do not end by themselves.

After a device error torch_npu's queue is dead, and a process whose destructors wait for the
device may spin for ever: the log has said by then that it is over. With several ranks EngineCore
may not even hear of it: the worker's thread that would tell it is dead, or the rank that it listens
to waits half an hour for the one whose device failed.
"""

import asyncio
import contextlib
import re
from pathlib import Path
from typing import BinaryIO

from tunan.supervisor.log_file import read_new

POLL_S = 0.2
# What vLLM (0.23 and 0.32) logs last, each above a traceback. Not "WorkerProc hit an exception.":
# one that a single call meets (loading an adapter that is not there) is only that call's.
FATAL_LINES = (
    "EngineCore failed to start.",
    "EngineCore encountered a fatal error.",
    "WorkerProc failed to start.",
    "Exception in thread WorkerAsyncOutputCopy",  # by Python, of the thread that sends results
)
# CANN's statuses of a device that failed, as torch_npu words them; other statuses are one call's.
DEVICE_FAILED = r"error code(?: is |:)507\d{3}"
_FATAL = re.compile("|".join([*map(re.escape, FATAL_LINES), DEVICE_FAILED]))
# Before each of its lines (ApiServer_0 where there are several). It never is the one to say that
# all is over, and what a client sends (what a chat template refuses, a prompt or an answer where
# those are logged) must not be taken for it.
_API_SERVER = re.compile(r"\((?i:apiserver)")


def is_fatal(line: str) -> bool:
    """Whether a line of the log says that the engine cannot go on."""
    return not _API_SERVER.match(line) and bool(_FATAL.search(line))


async def until_fatal(log: Path) -> None:
    """Returns once the engine has logged that it cannot go on."""
    with log.open("rb") as file:
        begun = b""
        while True:
            *lines, begun = (begun + _new(file)).split(b"\n")
            if any(is_fatal(line.decode(errors="replace")) for line in (*lines, begun)):
                return
            await asyncio.sleep(POLL_S)


def _new(log: BinaryIO) -> bytes:
    # A file system that fails (a stale handle) says nothing about the engine.
    with contextlib.suppress(OSError):
        return read_new(log)
    return b""
