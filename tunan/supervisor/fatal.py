"""Hears in the engine's log that it cannot go on, where its processes do not end by themselves.

After a device error torch_npu's queue is dead, and a process whose destructors wait for the
device may spin for ever: the log has said by then that it is over. With several ranks EngineCore
may not even hear of it: the worker's thread that would tell it is dead, or the rank that it listens
to waits half an hour for the one whose device failed.
"""

import asyncio
import re
from pathlib import Path

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
FATAL = re.compile("|".join([*map(re.escape, FATAL_LINES), DEVICE_FAILED]))
_FATAL = re.compile(FATAL.pattern.encode())
_LONGEST = max(len(line) for line in FATAL_LINES)


async def until_fatal(log: Path) -> None:
    """Returns once the engine has logged that it cannot go on."""
    with log.open("rb") as file:
        rest = b""
        while True:
            text = rest + file.read()
            if _FATAL.search(text):
                return
            rest = text[-_LONGEST:]
            await asyncio.sleep(POLL_S)
