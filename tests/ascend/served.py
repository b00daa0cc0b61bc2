"""`tunan serve` on emulated devices, and the CPU's own environment beside them."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.serving import SMALL, Served, serving

TARGET = ("--target", "ascend910b3", "--dtype", "float32")
ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def serving_emulated(
    model: Path,
    folder: Path,
    *options: str,
    devices: int = 1,
    faults: str = "",
    emulate: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    size: Sequence[str] = SMALL,
) -> Iterator[Served]:
    """Starts `tunan emulate -- tunan serve` in float32; nothing of it is left afterwards.

    `emulate` are further options of the first of the two.
    """
    tunan = [sys.executable, "-m", "tunan"]
    machine = ["--devices", str(devices), "--faults", faults, *emulate]
    with serving(
        model,
        folder,
        *TARGET,
        *options,
        tunan=[*tunan, "emulate", *machine, "--", *tunan],
        environment={**os.environ, **(environment or {})},
        size=size,
    ) as served:
        yield served


def cpu_python() -> Path | None:
    """The interpreter of the environment with the CPU engine, if `make setup` has made it."""
    python = ROOT / os.environ.get("VENV", ".venv") / "bin/python"
    return python if python.exists() else None


@contextlib.contextmanager
def serving_on_cpu(python: Path, model: Path, folder: Path, *options: str) -> Iterator[Served]:
    """Starts `tunan serve` with the CPU engine, in an environment without emulated devices."""
    hidden = ("ASCEND_", "TUNAN_EMULATE_")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(hidden) and name not in ("LD_LIBRARY_PATH", "PYTHONPATH")
    }
    with serving(
        model,
        folder,
        "--target",
        "cpu",
        "--dtype",
        "float32",
        *options,
        tunan=[str(python), "-m", "tunan"],
        environment=environment,
    ) as served:
        yield served


def greedy(served: Served, prompt: list[int], length: int) -> list[int]:
    """The token ids of a greedy answer, by HTTP."""
    answer = served.complete(
        prompt=prompt, max_tokens=length, ignore_eos=True, return_token_ids=True
    )
    assert answer.status == 200, answer.body
    tokens: list[int] = answer.json()["choices"][0]["token_ids"]
    return tokens
