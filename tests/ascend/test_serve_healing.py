"""Starts that fail on an emulated device, and come up after the remedy that the log calls for."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ascend.served import greedy, serving_emulated
from tests.models import write_llama
from tests.serving import Served
from tunan.cli.main import main

pytestmark = [pytest.mark.ascend, pytest.mark.long]

ONE = ("--warmup-requests", "1")
LONGEST = 8192


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whose steps and context are long enough to take memory."""
    folder = tmp_path_factory.mktemp("healed")
    source = write_llama(folder / "source", max_position_embeddings=LONGEST, intermediate_size=8192)
    result = folder / "converted"
    assert main(["convert", str(source), str(result), "--target", "ascend910b"]) == 0
    return result


def comes_up(served: Served) -> list[dict[str, Any]]:
    """The remedies after which it is ready, and answers."""
    begun = len(served.events)
    served.wait_until_ready()
    assert len(greedy(served, [5, 6, 7], 4)) == 4
    return [event for event in served.events[begun:] if event["event"] == "remedy"]


def test_out_of_memory_lowers_the_utilization(model: Path, tmp_path: Path) -> None:
    """Something takes memory after the engine has looked how much there is; a long prompt meets it.

    The engine's own trial of a step, before that, has 118 operators; it is ready after 277.
    """
    config = tmp_path / "deploy.yaml"
    config.write_text(f"model: {{path: {model}}}\ngateway: {{resume_wait_s: 1}}\n")
    with serving_emulated(
        model,
        tmp_path,
        *ONE,
        "--config",
        str(config),
        size=("--max-model-len", "4096", "--enforce-eager"),
        faults="oom:bytes=440M,after=200",
        emulate=("--memory", "512M"),
    ) as served:
        served.wait_until_ready()
        prompt = list(range(2, 900)) * 4
        # vLLM's own words, if it says them before it dies.
        assert served.complete(prompt=prompt, max_tokens=1).status in (500, 502, 503)
        (remedy,) = comes_up(served)
        assert served.complete(prompt=prompt, max_tokens=1).status == 200
    assert remedy["error"] == "npu-out-of-memory"
    assert remedy["remedy"] == "lower utilization"


def test_a_buffer_of_hccl_gets_the_size_that_is_asked_for_and_steps_become_shorter(
    model: Path, tmp_path: Path
) -> None:
    """One start fails for either; the size of the cache is set, so that stays.

    The operator stands for MoE's dispatch, which needs more ranks than there are here.
    """
    faults = "hccl-buffer:op=aclnnRmsNorm,mb=731;oom:bytes=230M,after=20"
    with serving_emulated(model, tmp_path, *ONE, faults=faults) as served:
        remedies = comes_up(served)
    assert [(remedy["error"], remedy["what"]) for remedy in remedies] == [
        ("hccl-buffer-too-small", "HCCL_BUFFSIZE=731"),
        ("npu-out-of-memory", "scheduler.max_num_batched_tokens 2048 -> 1024"),
    ]


def test_a_context_that_the_cache_cannot_hold_is_shortened_and_graphs_become_fewer(
    model: Path, tmp_path: Path
) -> None:
    """One start fails for either."""
    size = ("--max-model-len", str(LONGEST), "--kv-cache-gib", "0.01")
    options = (*ONE, "--no-enforce-eager", "--", "--max-num-seqs=16")
    with serving_emulated(
        model, tmp_path, *options, size=size, faults="graph-streams:graphs=4"
    ) as served:
        context, graphs = comes_up(served)
    assert context["remedy"] == "shorter context"
    assert context["what"].startswith(f"model.max_model_len {LONGEST} -> 3")
    assert graphs["error"] == "graph-streams-exhausted"
    assert graphs["remedy"] == "fewer graph sizes"


HOLD = """
import sys, torch, torch_npu
held = torch.empty(3 << 30, dtype=torch.uint8, device="npu")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def leftover(state: Path) -> "Iterator[subprocess.Popen[str]]":
    """A process that holds three of the four GiB of the machine's device."""
    tunan = [sys.executable, "-m", "tunan", "emulate", "--state", str(state), "--"]
    with subprocess.Popen(
        [*tunan, sys.executable, "-c", HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_leftover_process_is_waited_for(model: Path, tmp_path: Path) -> None:
    state = tmp_path / "machine"
    size = ("--max-model-len", "512", "--enforce-eager")
    with (
        leftover(state) as process,
        serving_emulated(
            model, tmp_path, *ONE, size=size, emulate=("--state", str(state))
        ) as served,
    ):
        remedy = served.wait_for("remedy")
        process.kill()
        assert comes_up(served) == []
        events = [event["event"] for event in served.events]
    assert remedy["error"] == "vllm-memory-taken"
    assert remedy["remedy"] == "wait for release"
    assert "device_busy" not in events
