"""`vllm bench serve`, unchanged, through `tunan gateway` before a real `tunan serve`.

Its command does not start where vLLM's CPU build is installed, whose package has another name than
the command asks for; so it is called as a module.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.models import write_decided_llama
from tests.serving import serving

pytestmark = pytest.mark.engine

BENCH = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
PROMPTS, TOKENS = 6, 12


@dataclass
class Door:
    """The gateway's port, and the model behind it."""

    port: str
    model: str
    directory: Path


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("bench")
    directory = write_decided_llama(folder / "model")
    with serving(directory, folder, "--warmup-requests", "1") as served:
        served.wait_until_ready()
        words = [sys.executable, "-m", "tunan", "gateway", "--port", "0", "--replica", served.url]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as gateway:
            assert gateway.stderr is not None
            url = gateway.stderr.readline().split("gateway at ")[1].split(";")[0]
            assert "is ready" in gateway.stderr.readline()
            yield Door(url.rsplit(":", 1)[1], served.model, directory)
            gateway.terminate()
            gateway.communicate()


@pytest.mark.parametrize(
    ("backend", "endpoint"),
    [("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")],
)
def test_every_request_is_answered_in_full(
    door: Door, tmp_path: Path, backend: str, endpoint: str
) -> None:
    words = ["--backend", backend, "--endpoint", endpoint, "--host", "127.0.0.1"]
    words += ["--port", door.port, "--model", door.model, "--tokenizer", str(door.directory)]
    words += ["--dataset-name", "random", "--random-input-len", "20", "--ignore-eos"]
    words += ["--random-output-len", str(TOKENS), "--num-prompts", str(PROMPTS)]
    words += ["--ready-check-timeout-sec", "60", "--save-result", "--result-filename", "told.json"]
    run = subprocess.run(
        [sys.executable, "-c", BENCH, *words],
        cwd=tmp_path,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    told: dict[str, Any] = json.loads((tmp_path / "told.json").read_text())
    assert (told["completed"], told["failed"]) == (PROMPTS, 0)
    assert told["total_output_tokens"] == PROMPTS * TOKENS
