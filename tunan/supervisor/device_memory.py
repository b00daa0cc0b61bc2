"""Waits until an NPU's memory is free before an engine is started on it again.

The driver gives memory back when the last process that has the device open is gone, and a process
killed in a call to the device may take its time to end. On a CPU, and on an emulated device that is
not shared, whose memory is that of its processes, there is nothing to wait for.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

POLL_S = 0.2

IsFree = Callable[[], bool]


def always_free() -> bool:
    """Of memory that goes with the processes that had it."""
    return True


def nobody_has(
    devices: Sequence[int], root: Path = Path("/"), files_in: Path = Path("/dev")
) -> IsFree:
    """Whether no process that may be looked at has one of `devices`, a file of `files_in`, open."""
    files = {str(files_in / f"davinci{number}") for number in devices}

    def is_free() -> bool:
        return not any(_has_open(process, files) for process in (root / "proc").glob("[0-9]*"))

    return is_free


def _has_open(process: Path, files: Collection[str]) -> bool:
    # Processes end and close files while they are looked at.
    with contextlib.suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                if str(descriptor.readlink()) in files:
                    return True
    return False


async def wait_until_free(is_free: IsFree, limit_s: float) -> bool:
    """Returns once `is_free()`, or after `limit_s`; whether it is free then."""
    end = time.monotonic() + limit_s
    while True:
        free = await asyncio.to_thread(is_free)
        if free or time.monotonic() >= end:
            return free
        await asyncio.sleep(POLL_S)
