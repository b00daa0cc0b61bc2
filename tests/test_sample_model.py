"""From the sample model's GGUF file to an answer: converted, compared, served, asked."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.vllm_process import run_in_vllm
from tests.sample import sample_gguf
from tests.serving import Served, serving
from tunan.cli.main import main

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def gguf() -> Path:
    return sample_gguf()


@pytest.fixture(scope="module")
def served(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("sample")
    assert main(["convert", str(gguf), str(folder / "smollm2")]) == 0
    with serving(folder / "smollm2", folder, "--warmup-requests", "5") as server:
        server.wait_until_ready()
        yield server


def chat(served: Served, *words: str) -> subprocess.CompletedProcess[str]:
    """`tunan chat` as a user runs it."""
    command = [sys.executable, "-m", "tunan", "chat", "--url", served.url, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_every_token_is_that_of_transformers_in_float32(gguf: Path, tmp_path: Path) -> None:
    assert main(["convert", str(gguf), str(tmp_path / "f32"), "--dtype", "float32"]) == 0
    question = {"models": {"sample": str(tmp_path / "f32")}, "dtype": "float32"}
    found: dict[str, Any] = run_in_vllm(
        "tests.engine.generation:compare_all", question, tmp_path / "run", seconds=400
    )
    assert found["sample"] == [None] * 6


def test_the_served_model_knows_the_capital_of_france(served: Served) -> None:
    question = "What is the capital of France? Answer in one sentence."  # no token is a near tie
    answer = chat(served, "--temperature", "0", question)
    said = (answer.returncode, answer.stdout)
    assert said == (0, "The capital of France is Paris.\n"), answer.stderr


def test_chat_as_json_names_the_model(served: Served) -> None:
    answer = chat(served, "--json", "--temperature", "0", "--max-tokens", "4", "Hi")
    assert json.loads(answer.stdout)["model"] == "smollm2"
