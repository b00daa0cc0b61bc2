"""Runs a function of the tests in a process of its own, where vLLM may do as it likes.

vLLM keeps process-wide state, warns on import and costs seconds to load; the tests'
own process stays clean of it, and one process serves many cases.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_AOT_COMPILE": "0",
}


class ProcessFailed(AssertionError):
    """The process ended without a result; the message ends with its log."""


def run_in_vllm(function: str, argument: Any, scratch: Path, *, seconds: int = 300) -> Any:
    """Calls `module:name` with `argument` in a fresh interpreter; both ways as JSON."""
    scratch.mkdir(parents=True, exist_ok=True)
    question, answer, log = (scratch / name for name in ("question", "answer", "log"))
    question.write_text(json.dumps(argument))
    command = [sys.executable, "-m", __name__, function, str(question), str(answer)]
    with log.open("wb") as output:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | ENVIRONMENT | _caches(scratch),
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
    if done.returncode != 0 or not answer.exists():
        raise ProcessFailed(f"{function} failed:\n{log.read_text(errors='replace')[-6000:]}")
    return json.loads(answer.read_text())


def _caches(scratch: Path) -> dict[str, str]:
    """Ours is new in every process; vLLM's, which saves seconds, stays the user's."""
    ours = {"XDG_CACHE_HOME": str(scratch / "cache")}
    theirs = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return ours | {"VLLM_CACHE_ROOT": os.environ.get("VLLM_CACHE_ROOT") or f"{theirs}/vllm"}


def main() -> None:
    """`python -m tests.engine.vllm_process module:name QUESTION ANSWER`."""
    function, question, answer = sys.argv[1:]
    module, name = function.split(":")
    result = getattr(importlib.import_module(module), name)(json.loads(Path(question).read_text()))
    Path(answer).write_text(json.dumps(result))
    # vLLM's threads and process groups need not be taken down one by one.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
