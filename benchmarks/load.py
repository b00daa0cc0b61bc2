"""Measures loading: Tunan's load format against vLLM's default loader, on the same model.

    python -m benchmarks.load                 4.4 GB; needs 23 GB of disk and 15 minutes
    python -m benchmarks.load --layers 2 --repeats 1

Each run is a process of its own that builds the model and loads it, as an engine does
before it makes its KV cache (`benchmarks.load_once`). TP=4 is one rank alone: its process
group is told that it has four members, and vLLM's own code builds and fills that rank's
parameters; loading exchanges nothing between ranks. Cold means that the files were dropped
from the page cache first. Runs of the loaders alternate. Memory is sampled every 10 ms
from /proc/PID/status; bytes are `read_bytes` of /proc/PID/io, what came from the disk.
Writes benchmarks/results/load.json.
"""

import argparse
import fcntl
import json
import os
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.llama import write_large_llama
from benchmarks.machine import describe_machine

RESULTS = Path(__file__).with_name("results") / "load.json"
SAMPLE_SECONDS = 0.01
DEGREE, RANK = 4, 1
CONVERT = (sys.executable, "-c", "from tunan.cli.main import main; raise SystemExit(main())")


@dataclass(frozen=True)
class Case:
    """One way to load; `blocks` are those of the layout that is read.

    `first`: nothing is known of the blocks yet, so that every one read whole is hashed.
    """

    ranks: int
    loader: str
    blocks: str
    directory: str
    first: bool = False


@dataclass(frozen=True)
class Run:
    """What one process needed; memory in MB above what it had before it built the model."""

    seconds: float
    read_mb: float
    anonymous_mb: float
    peak_anonymous_mb: float
    peak_total_mb: float
    process_peak_anonymous_mb: float


CASES = (
    Case(1, "default", "plain", "whole"),
    Case(1, "tunan", "plain", "cut", first=True),
    Case(1, "tunan", "plain", "cut"),
    Case(1, "tunan", "fused", "whole", first=True),
    Case(1, "tunan", "fused", "whole"),
    Case(DEGREE, "default", "plain", "cut"),
    Case(DEGREE, "tunan", "plain", "whole"),
    Case(DEGREE, "tunan", "rank", "cut", first=True),
    Case(DEGREE, "tunan", "rank", "cut"),
)


def main() -> None:
    """Generates and converts the model, runs every case, writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=8, help="354 MB each, beside 1.7 GB")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scratch", type=Path, default=None, help="where the files go")
    parser.add_argument("--model", type=Path, default=None, help="use and keep this directory")
    parser.add_argument("--lock", type=Path, default=None, help="held while a repeat runs")
    args = parser.parse_args()
    machine = describe_machine()
    with tempfile.TemporaryDirectory(dir=args.scratch) as scratch:
        base = args.model or Path(scratch)
        size = _prepare(base, args.layers)
        runs = _repeat(base, args.repeats, args.lock)
    result = {
        "machine": machine,
        "model": {"layers": args.layers, "bytes": size, "vocabulary": 102400, "hidden": 4096},
        "repeats": args.repeats,
        "cases": [_summary(case, cache, found) for (case, cache), found in runs.items()],
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


def _prepare(base: Path, layers: int) -> int:
    """Makes `whole` (fused for one rank) and `cut` (for four) below `base`; returns bytes."""
    source = base / "source"
    for name, ranks in (("whole", 1), ("cut", DEGREE)):
        if not (base / name).is_dir():
            if not source.is_dir():
                write_large_llama(source, layers)
            command = ["convert", str(source), str(base / name)]
            subprocess.run(
                [*CONVERT, *command, "--tensor-parallel-size", str(ranks)],
                check=True,
                stdout=subprocess.DEVNULL,
            )
    return sum(file.stat().st_size for file in (base / "whole").glob("*.safetensors"))


def _repeat(base: Path, repeats: int, lock: Path | None) -> dict[tuple[Case, str], list[Run]]:
    runs: dict[tuple[Case, str], list[Run]] = {}
    for number in range(repeats):
        for cache in ("cold", "warm"):
            with _held(lock):
                # The other way round every second time, so that neither always goes first.
                for case in CASES if number % 2 == 0 else reversed(CASES):
                    _set_page_cache(base / case.directory, case, warm=cache == "warm")
                    run = _measure(base, case)
                    runs.setdefault((case, cache), []).append(run)
                    print(cache, case, run, file=sys.stderr, flush=True)
    return runs


@contextmanager
def _held(lock: Path | None) -> Iterator[None]:
    if lock is None:
        yield
        return
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _set_page_cache(directory: Path, case: Case, *, warm: bool) -> None:
    """Drops every block from the page cache, or reads those this case will use."""
    for path in directory.rglob("*.safetensors"):
        with path.open("rb", buffering=0) as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if not warm:
        return
    used = directory
    if case.loader == "tunan" and case.blocks != "plain":
        used = directory / f"tensor-parallel-{case.ranks}" / f"rank-{RANK if case.ranks > 1 else 0}"
    piece = bytearray(8 << 20)
    for path in used.glob("*.safetensors"):
        with path.open("rb", buffering=0) as file:
            while file.readinto(piece):
                pass


def _measure(base: Path, case: Case) -> Run:
    known = base / "cache" / "tunan" / "verified"
    if case.first:
        shutil.rmtree(known, ignore_errors=True)
    question = {
        "model": str(base / case.directory),
        "degree": case.ranks,
        "rank": RANK if case.ranks > 1 else 0,
        "load_format": "tunan" if case.loader == "tunan" else "auto",
    }
    command = [sys.executable, "-m", "benchmarks.load_once", json.dumps(question)]
    environment = os.environ | {
        "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CACHE_ROOT": str(base / "vllm"),
        "VLLM_USE_AOT_COMPILE": "0",
        "XDG_CACHE_HOME": str(base / "cache"),
    }
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdin
    _expect(process, "ready")
    before = _memory(process.pid)
    process.stdin.write("go\n")
    process.stdin.flush()
    peaks = _watch(process, before)
    seconds, read = _expect(process, "done").split()
    process.stdin.close()
    process.wait(60)
    return Run(float(seconds), int(read) / 1e6, **peaks)


def _expect(process: "subprocess.Popen[str]", word: str) -> str:
    assert process.stdout
    for line in process.stdout:
        if line.startswith(f"{word}:"):
            return line.removeprefix(f"{word}:")
    raise SystemExit(f"the measured process ended before it said {word!r}")


def _watch(process: "subprocess.Popen[str]", before: tuple[int, int]) -> dict[str, float]:
    """Samples memory until the process says that it is done (its output becomes readable)."""
    assert process.stdout
    anonymous, total = before
    while not select.select([process.stdout], [], [], 0)[0]:
        now = _memory(process.pid)
        anonymous, total = max(anonymous, now[0]), max(total, now[1])
        time.sleep(SAMPLE_SECONDS)
    after = _memory(process.pid)
    return {
        "anonymous_mb": (after[0] - before[0]) / 1e6,
        "peak_anonymous_mb": (anonymous - before[0]) / 1e6,
        "peak_total_mb": (total - before[1]) / 1e6,
        "process_peak_anonymous_mb": anonymous / 1e6,
    }


def _memory(pid: int) -> tuple[int, int]:
    """(RssAnon, VmRSS) in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = {line.split(":")[0]: line.split()[1] for line in lines if line.endswith("kB")}
    return int(fields["RssAnon"]) * 1024, int(fields["VmRSS"]) * 1024


def _summary(case: Case, cache: str, runs: Sequence[Run]) -> dict[str, Any]:
    described = {k: v for k, v in asdict(case).items() if k != "directory"}
    figures = {}
    for name in asdict(runs[0]):
        values = [getattr(run, name) for run in runs]
        figures[name] = {
            "median": round(statistics.median(values), 2),
            "min": round(min(values), 2),
            "max": round(max(values), 2),
        }
    return {**described, "cache": cache, **figures}


if __name__ == "__main__":
    main()
