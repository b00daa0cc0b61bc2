"""How well and how fast `tunan diagnose` reads logs.

    python -m benchmarks.diagnose                  a minute on two cores
    python -m benchmarks.diagnose --keep-speed     the accuracy alone; what was timed earlier stays

Accuracy: every example of every entry of the knowledge base, and errors that it does not know, each
in a generated log of an engine with four ranks (tests/diagnosis/noise.py), with several seeds. The
examples are our own words in the layout of the real messages, so the figure says how well noise is
told from errors, not how complete the knowledge is. That is what the posts are for: errors that
people posted (tests/diagnosis/posts.toml), and what was said of each before it was worked on.
Speed: `tunan diagnose` as a process, on a generated log, of which one part ends in an error and on
one in which every line is an error; wall-clock time, CPU time and peak memory of the process.
Writes benchmarks/results/diagnose.json.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.machine import describe_machine
from tests.diagnosis.accuracy import SEEDS, measure
from tests.diagnosis.noise import failed, quiet_log
from tests.diagnosis.posts import measure_posts
from tunan.diagnosis.knowledge import knowledge

RESULTS = Path(__file__).with_name("results") / "diagnose.json"
PARTS = 20  # different ones in a large log
OUT_OF_MEMORY = "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB"


def main() -> None:
    """Measures everything, writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=100, help="of the large logs")
    parser.add_argument("--repeats", type=int, default=5, help="of every timing")
    parser.add_argument("--keep-speed", action="store_true", help="measure the accuracy alone")
    arguments = parser.parse_args()
    earlier = json.loads(RESULTS.read_text(encoding="utf-8")) if arguments.keep_speed else {}
    machine = earlier.get("machine") or describe_machine()
    accuracy = {
        "entries": len(knowledge().entries),
        "seeds": len(SEEDS),
        **measure().as_json(),
    }
    speed = earlier.get("speed") or _speed(arguments.megabytes * 1_000_000, arguments.repeats)
    found = {"accuracy": accuracy, "posts": measure_posts(), "speed": speed}
    content = {"machine": machine, **found}
    RESULTS.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2, ensure_ascii=False))


def _speed(size: int, repeats: int) -> dict[str, dict[str, object]]:
    with tempfile.TemporaryDirectory() as folder:
        logs = _logs(Path(folder), size)
        return {name: _timed(log, repeats) for name, log in logs.items()}


def _logs(folder: Path, size: int) -> dict[str, Path]:
    end = failed(OUT_OF_MEMORY, 1).data
    small = folder / "small.log"
    small.write_bytes(end)
    mixed = folder / "mixed.log"
    _fill(mixed, size - len(end), [quiet_log(seed, 2000).data for seed in range(PARTS)])
    with mixed.open("ab") as file:
        file.write(end)
    loop = folder / "loop.log"
    _fill(loop, size, [_errors_of(seed) for seed in range(PARTS)])
    return {"small": small, "one failure": mixed, "a crash loop": loop}


def _errors_of(seed: int) -> bytes:
    """A failure of which every line was logged as an error."""
    lines = failed(OUT_OF_MEMORY, seed).lines
    return b"".join(line.encode() + b"\n" for line in lines if "ERROR" in line)


def _fill(log: Path, size: int, parts: list[bytes]) -> None:
    """The parts one after another, again and again."""
    with log.open("wb") as file:
        for part in itertools.cycle(parts):
            if file.tell() >= size:
                return
            file.write(part)


def _timed(log: Path, repeats: int) -> dict[str, object]:
    walls, cpus, peaks = [], [], []
    command = [sys.executable, "-m", "tunan", "diagnose", str(log), "--json"]
    for _ in range(repeats):
        begin = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            said = json.loads(process.stdout.read())
            _, status, usage = os.wait4(process.pid, 0)
            walls.append(time.monotonic() - begin)
            process.returncode = os.waitstatus_to_exitcode(status)
        cpus.append(usage.ru_utime + usage.ru_stime)
        peaks.append(usage.ru_maxrss / 1024)
        assert said["cause"]["id"] == "npu-out-of-memory", said
    return {
        "megabytes": round(log.stat().st_size / 1e6, 1),
        "seconds": _spread(walls),
        "cpu_seconds": _spread(cpus),
        "peak_mib": round(max(peaks)),
    }


def _spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 2),
        "least": round(min(values), 2),
        "most": round(max(values), 2),
    }


if __name__ == "__main__":
    main()
