"""Tunan's CPU kernels against vLLM's own and llama.cpp's, in process and in one run.

    python -m benchmarks.cpu --quick --llama-cpp /path/to/venv/bin/python     about 12 minutes
    python -m benchmarks.cpu                                                  about an hour

Models: the sample (`make` fetches it) and a generated Llama of 1.1B parameters, each as
bfloat16 and as `tunan convert --quantize` writes it. All engines of a model are loaded at
once and asked in turn, so that every repeat sees them in the same window of a machine whose
memory is faster at some times than at others; `read_gb_s` is what plain reading reaches there.
`decode_N` is tokens a second of N sequences after prompts of 16 tokens, `decode_1_at_2048` after
one of 2048, `prefill_N` prompt tokens a second. vLLM runs eagerly, as `tunan serve` runs it;
its compiled mode is not measured here. llama.cpp runs the sample's own 4-bit file, in an
environment of its own, where it is built for minutes:

    python -m venv /path/to/venv && /path/to/venv/bin/pip install llama-cpp-python==0.3.36

Writes benchmarks/results/cpu.json.
"""

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch

from benchmarks.cpu_subjects import MODELS, Subject
from benchmarks.machine import describe_machine
from benchmarks.other_load import OtherLoad

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).with_name("results") / "cpu.json"
READ_BYTES = 1 << 30

Question = dict[str, Any]
QUICK: dict[str, Question] = {
    "decode_1": {"kind": "decode", "batch": 1, "context": 16, "tokens": 24},
    "decode_8": {"kind": "decode", "batch": 8, "context": 16, "tokens": 16},
    "decode_32": {"kind": "decode", "batch": 32, "context": 16, "tokens": 12},
    "prefill_512": {"kind": "prefill", "tokens": 512},
}
FULL: dict[str, Question] = {
    **{kind: question | {"tokens": 512} for kind, question in QUICK.items() if kind[0] == "p"},
    **{kind: question | {"tokens": 64} for kind, question in QUICK.items() if kind[0] == "d"},
    "decode_1_at_2048": {"kind": "decode", "batch": 1, "context": 2048, "tokens": 48},
    "prefill_2048": {"kind": "prefill", "tokens": 2048},
}


@dataclass
class Running:
    """A loaded subject, idle until it is asked."""

    subject: Subject
    log: Path
    ready_s: float = 0.0
    peak_bytes: int = 0
    _ours: socket.socket = field(init=False)

    def __enter__(self) -> Self:
        self._ours, theirs = socket.socketpair()
        os.set_inheritable(theirs.fileno(), True)
        arguments = [str(theirs.fileno()), json.dumps(self.subject.arguments)]
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [*self.subject.command, *arguments],
                cwd=ROOT,
                env=_environment() | {"TUNAN_CPU_KERNELS": self.subject.kernels},
                pass_fds=[theirs.fileno()],
                stdout=log,
                stderr=log,
            )
        theirs.close()
        self._file = self._ours.makefile("rw")
        self.ready_s = round(self._answer()["ready"], 2)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._file.close()
        self._ours.close()

    def ask(self, question: Question) -> float:
        """Tokens a second."""
        self._file.write(json.dumps(question) + "\n")
        self._file.flush()
        answer = self._answer()
        self.peak_bytes = int(answer["peak_bytes"])
        tokens = int(question["tokens"] * question.get("batch", 1))
        return float(tokens / answer["seconds"])

    def _answer(self) -> dict[str, Any]:
        line = self._file.readline()
        if not line:
            raise SystemExit(f"{self.subject.name} ended:\n{self.log.read_text()[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def main() -> None:
    """Measures, prints a table, writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few tokens, no long contexts")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--llama-cpp", metavar="PYTHON", help="one with llama-cpp-python")
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    questions = QUICK if args.quick else FULL
    machine = describe_machine()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for model in args.models:
            subjects = MODELS[model](Path(scratch), args.llama_cpp)
            found[model] = compare(subjects, questions, args.repeats, Path(scratch))
    result = {"machine": machine, "quick": args.quick, "models": found}
    args.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for model, content in found.items():
        print(model, json.dumps(content["summary"], indent=1))


def compare(
    subjects: list[Subject], questions: dict[str, Question], repeats: int, scratch: Path
) -> dict[str, Any]:
    """Every subject asked every question `repeats` times, in turn."""
    runs: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(Running(subject, scratch / f"{number}.log"))
            for number, subject in enumerate(subjects)
        ]
        for kind, question in questions.items():
            for one in running:
                one.ask(question | {"tokens": 8} if kind[0] == "d" else question)
            for repeat in range(repeats):
                run: dict[str, Any] = {"kind": kind, "repeat": repeat}
                with OtherLoad() as load:
                    run["read_gb_s"] = round(_read_speed(), 1)
                    run["tokens_s"] = {
                        one.subject.name: round(one.ask(question), 2) for one in running
                    }
                run["others_cores"] = round(load.cores, 2)
                print(json.dumps(run), flush=True)
                runs.append(run)
        engines = {
            one.subject.name: {"ready_s": one.ready_s, "peak_bytes": one.peak_bytes}
            for one in running
        }
    return {"summary": summary(runs), "engines": engines, "runs": runs}


def summary(runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of each kind and subject the median, least and most tokens a second."""
    table: dict[str, dict[str, Any]] = {}
    for kind in dict.fromkeys(run["kind"] for run in runs):
        same = [run for run in runs if run["kind"] == kind]
        table[kind] = {
            name: _spread([run["tokens_s"][name] for run in same]) for name in same[0]["tokens_s"]
        }
        table[kind]["read_gb_s"] = _spread([run["read_gb_s"] for run in same])
    return table


def _spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 2),
        "least": min(values),
        "most": max(values),
    }


def _environment() -> dict[str, str]:
    """What `tunan serve` sets for one rank: the fastest that was found for vLLM too."""
    from tunan.config import deployment_from
    from tunan.supervisor.directories import Directories
    from tunan.supervisor.environment import engine_environment, with_users_choice
    from tunan.supervisor.machine import look

    deployment = deployment_from({"model": {"path": "/model"}}, "benchmark")
    ours = engine_environment(look(), deployment, Directories.of_user())
    single = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_PLUGINS": "tunan"}
    ours |= single | {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return with_users_choice(ours, os.environ)


def _read_speed() -> float:
    """GB/s of reading a GiB with all cores, the best of three."""
    memory = _memory()
    best = 0.0
    for _ in range(3):
        started = time.perf_counter()
        memory.sum()
        best = max(best, READ_BYTES / (time.perf_counter() - started) / 1e9)
    return best


def _memory() -> torch.Tensor:
    global _kept
    if _kept is None:
        _kept = torch.ones(READ_BYTES // 8, dtype=torch.int64)
    return _kept


_kept: torch.Tensor | None = None


if __name__ == "__main__":
    main()
