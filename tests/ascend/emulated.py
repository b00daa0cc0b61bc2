"""Runs programs on the emulated device, each in a process that cannot outlive its time."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True)
class Outcome:
    """How a program ended, what it printed, and what ran on the device."""

    status: int
    output: str
    errors: str
    trace: list[str]

    @property
    def result(self) -> Any:
        """What the program printed after RESULT, as JSON."""
        lines = [line for line in self.output.splitlines() if line.startswith("RESULT ")]
        assert lines, f"no result, status {self.status}:\n{self.errors[-3000:]}"
        return json.loads(lines[-1].removeprefix("RESULT "))

    def operators(self) -> set[str]:
        """The names of the operators that ran."""
        return {line.split()[0] for line in self.trace}


def run_emulated(
    command: list[str],
    directory: Path,
    *,
    devices: int = 1,
    faults: str = "",
    state: Path | None = None,
    seconds: int = 120,
    **environment: str,
) -> Outcome:
    """Runs `python *command` on `devices` emulated devices; killed after `seconds`."""
    trace = directory / "trace.txt"
    trace.unlink(missing_ok=True)
    # A device error leaves torch_npu's queue dead and its process spinning: TERM may not end it.
    guarded = ["timeout", "-k", "5", str(seconds), sys.executable, "-m", "tunan", "emulate"]
    options = ["--devices", str(devices), "--faults", faults, "--trace", str(trace)]
    if state:
        options += ["--state", str(state)]
    done = subprocess.run(
        [*guarded, *options, "--", sys.executable, *command],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
    )
    lines = trace.read_text().splitlines() if trace.exists() else []
    return Outcome(done.returncode, done.stdout, done.stderr, lines)


def run_snippet(code: str, directory: Path, **options: Any) -> Outcome:
    """Runs lines of Python that have torch, torch_npu and json imported."""
    return run_emulated(["-c", f"import json, torch, torch_npu\n{code}"], directory, **options)


def generate(
    model: Path,
    requests: list[dict[str, Any]],
    *,
    engine: dict[str, Any] | None = None,
    devices: int = 1,
    **environment: str,
) -> Outcome:
    """Generates with vLLM and vllm-ascend; a request is a `prompt` (token ids) and its sampling.

    The outcome's result is a list with, for each request, its `tokens` (a list a sample), the
    number of `cached` prompt tokens, the `logprobs` of its first token and the `prompt_logprobs` of
    each prompt token but the first.
    """
    # As `tunan serve` does: where CI is set torch refuses an operator that returns its input.
    environment.setdefault("TORCHINDUCTOR_ERROR_ON_CUSTOM_OP_ALIASING", "0")
    task = {"model": str(model), "engine": engine or {}, "requests": requests}
    return run_emulated(
        [str(PROGRAMS / "generate.py"), json.dumps(task)],
        model,
        devices=devices,
        state=None,
        seconds=280,
        **environment,
    )
