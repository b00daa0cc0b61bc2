"""Tensor parallelism with our kernels: two real ranks on one machine."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.cpu.agreement import agreed
from tests.engine.cpu.quantised import quantise
from tests.engine.cpu.runs import TOKENS
from tests.engine.generation import prompts
from tests.engine.vllm_process import run_in_vllm
from tests.models import write_deepseek_v3, write_llama
from tunan.engine.cpu.sidecar import FOLDER
from tunan.engine.cpu.switch import VARIABLE

pytestmark = [pytest.mark.engine, pytest.mark.long]

TWO_RANKS = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
Run = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two_ranks")
    # An output bias, which one rank alone may add.
    source = write_llama(folder / "source", attention_bias=True)
    return quantise(source, folder / "w8a8", "w8a8")


@pytest.fixture(scope="module")
def run(model: Path) -> Run:
    """By switch: the tokens of two ranks, and `said`, their log. One engine a switch."""

    @functools.cache
    def run_with(switch: str) -> dict[str, Any]:
        question = {"model": str(model), "prompts": prompts(), "arguments": TWO_RANKS}
        scratch = model.parent / switch
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv(VARIABLE, switch)
            found: dict[str, Any] = run_in_vllm("tests.engine.cpu.runs:generate", question, scratch)
        return found | {"said": (scratch / "log").read_text(errors="replace")}

    return run_with


def test_fused_layers_generate_what_unfused_ones_do(run: Run) -> None:
    fused, unfused = run("1"), run("linear,attention")
    assert fused["said"].count("tunan: decoder layers are fused") == 2
    assert "decoder layers are fused" not in unfused["said"]
    assert fused["tokens"] == unfused["tokens"]


def test_each_rank_keeps_its_own_packed_weights(model: Path, run: Run) -> None:
    assert run("1")["tokens"]
    ranks = {path.parent.name for path in (model / FOLDER).rglob("*.bin")}
    assert ranks == {"tp-2-0", "tp-2-1"}


def test_linear_layers_generate_what_vllms_own_kernels_do(run: Run) -> None:
    assert run("linear")["tokens"] == run("0")["tokens"]


PARALLEL: dict[str, dict[str, Any]] = {
    "one rank": {},
    "two ranks": TWO_RANKS,
    "each half of the experts": TWO_RANKS | {"enable_expert_parallel": True},
}


@pytest.fixture(scope="module", params=["w8a8", "w4a8"])
def mixture(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """By way of being parallel, what one DeepSeek-V3 of the scheme says; and its packed files."""
    folder = tmp_path_factory.mktemp(f"mixture-{request.param}")
    # A rank's half of an expert has to be whole groups of int4.
    source = write_deepseek_v3(folder / "source", moe_intermediate_size=256)
    model = quantise(source, folder / "model", request.param)
    answers = {}
    for way, arguments in PARALLEL.items():
        exact = arguments | {"dtype": "float32", "attention_backend": "CPU_MLA"}
        question = {"model": str(model), "prompts": prompts(), "arguments": exact}
        answers[way] = run_in_vllm("tests.engine.cpu.runs:generate", question, folder / way)
    return answers | {"folders": {path.parent.name for path in (model / FOLDER).rglob("*.bin")}}


@pytest.mark.parametrize("way", ["two ranks", "each half of the experts"])
def test_experts_of_two_ranks_add_up_to_those_of_one(mixture: dict[str, Any], way: str) -> None:
    # Each rank rounds its half of a row with a scale of its own.
    same = agreed(mixture[way], mixture["one rank"], tie=0.25)
    assert same > len(prompts()) * TOKENS / 2
    assert mixture["folders"] == {"tp-1-0", "tp-2-0", "tp-2-1"}
