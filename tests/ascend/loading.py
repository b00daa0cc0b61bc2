"""Runs a load on emulated devices, and reads what the trace says of its copies."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.ascend.conftest import PROMPTS
from tests.ascend.emulated import Outcome, run_emulated

TOKENS = 6
BUFFER_BYTES = 32 << 20


def load(
    model: Path,
    load_format: str,
    scratch: Path,
    *,
    devices: int = 1,
    faults: str = "",
    nz: str = "1",
    **engine: Any,
) -> Outcome:
    """The outcome's result is as programs/load.py says; `engine` are arguments of `vllm.LLM`.

    `nz` is VLLM_ASCEND_ENABLE_NZ: 1, its default, lays quantised weights out as FRACTAL_NZ, 2 all.
    """
    settings = {"load_format": load_format, "tensor_parallel_size": devices, **engine}
    task = {"model": str(model), "engine": settings, "prompts": PROMPTS, "tokens": TOKENS}
    scratch.mkdir(parents=True, exist_ok=True)
    return run_emulated(
        ["-m", "tests.ascend.programs.load", json.dumps(task)],
        scratch,
        devices=devices,
        faults=faults,
        seconds=280,
        VLLM_ASCEND_ENABLE_NZ=nz,
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        XDG_CACHE_HOME=str(scratch / "cache"),
    )


@dataclass(frozen=True)
class Copy:
    """One queued copy; `queued` and `done` are its lines' places in the trace."""

    queued: int
    done: int
    kind: str
    bytes: int
    stream: str
    source: int
    pinned: bool


def copies(trace: list[str]) -> list[Copy]:
    """The queued copies of a trace of one process, in order."""
    done = {line.split("id=")[1]: at for at, line in enumerate(trace) if line[:9] == "copy done"}
    found = []
    for at, line in enumerate(trace):
        if line.startswith("copy queued "):
            told = _told(line)
            size, source = int(told["bytes"]), int(told["from"])
            pinned = line.endswith(" pinned")
            end = done[told["id"]]
            found.append(Copy(at, end, told["kind"], size, told["stream"], source, pinned))
    return found


def staged(trace: list[str]) -> list[Copy]:
    """Those from the loader's staging buffers, which are known by their size."""
    buffers = {_told(line)["host"] for line in trace if _is_buffer(line, "allocated")}
    return [copy for copy in copies(trace) if str(copy.source) in buffers]


def freed_buffers(trace: list[str]) -> int:
    """How many staging buffers were given back."""
    return sum(_is_buffer(line, "freed") for line in trace)


def waited_for(trace: list[str], copy: Copy, until: int) -> bool:
    """Whether the host waited, before line `until`, for an event that follows the copy."""
    recorded = next(
        line
        for line in trace[copy.queued : until]
        if line.startswith("event recorded ") and _told(line)["stream"] == copy.stream
    )
    wait = f"event synchronized event={_told(recorded)['event']}"
    return wait in trace[copy.done : until]


def peak_of_pinned_bytes(trace: list[str]) -> int:
    """The most page-locked host memory at any time."""
    held = peak = 0
    for line in trace:
        if line.startswith("pinned "):
            size = int(_told(line)["bytes"])
            held += size if line.startswith("pinned allocated") else -size
            peak = max(peak, held)
    return peak


def _is_buffer(line: str, what: str) -> bool:
    return line.startswith(f"pinned {what} ") and line.endswith(f" bytes={BUFFER_BYTES}")


def _told(line: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S+)", line))
