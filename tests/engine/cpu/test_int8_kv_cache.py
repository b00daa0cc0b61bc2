"""`--kv-cache-dtype int8_per_token_head` on a CPU, in a real engine."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.cpu.quantised import quantise
from tests.engine.generation import prompts
from tests.engine.vllm_process import ProcessFailed, run_in_vllm
from tests.models import write_llama
from tunan.engine.cpu.switch import VARIABLE

pytestmark = pytest.mark.engine

INT8 = {"kv_cache_dtype": "int8_per_token_head"}
CHUNKED = INT8 | {"max_num_batched_tokens": 32}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("model") / "llama", num_hidden_layers=4)


@pytest.fixture(scope="module")
def answers(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    w8a8 = str(quantise(model, model.with_name("w8a8"), "w8a8"))
    one_by_one = [[prompt] for prompt in prompts()]
    questions: dict[str, dict[str, Any]] = {
        "bf16": {"model": str(model)},
        "int8": {"model": str(model), "arguments": INT8},
        "w8a8": {"model": w8a8},
        "w8a8, int8": {"model": w8a8, "arguments": INT8},
        "w8a8, int8, chunks": {"model": w8a8, "arguments": CHUNKED},
        "w8a8, int8, alone": {"model": w8a8, "arguments": INT8, "rounds": one_by_one},
    }
    asked = [{"prompts": prompts(), **question} for question in questions.values()]
    found = run_in_vllm("tests.engine.cpu.runs:generate_all", asked, tmp_path_factory.mktemp("run"))
    return dict(zip(questions, found, strict=True))


@pytest.mark.parametrize(("plain", "small"), [("bf16", "int8"), ("w8a8", "w8a8, int8")])
def test_the_same_memory_holds_1_85_times_as_many_tokens(
    answers: dict[str, Any], plain: str, small: str
) -> None:
    assert answers[plain]["block_size"] == answers[small]["block_size"]
    assert answers[small]["blocks"] >= 1.85 * answers[plain]["blocks"]


@pytest.mark.parametrize(("plain", "small"), [("bf16", "int8"), ("w8a8", "w8a8, int8")])
def test_most_tokens_are_those_of_the_full_cache(
    answers: dict[str, Any], plain: str, small: str
) -> None:
    pairs = zip(answers[plain]["tokens"], answers[small]["tokens"], strict=True)
    shared = [_common_prefix(*pair) for pair in pairs]
    # Random weights make near ties common; after the first, sequences are their own.
    assert sum(shared) / len(shared) >= 6


def _common_prefix(left: list[int], right: list[int]) -> int:
    pairs = enumerate(zip(left, right, strict=True))
    return next((i for i, (a, b) in pairs if a != b), len(left))


@pytest.mark.parametrize("way", ["chunks", "alone"])
def test_tokens_do_not_depend_on_how_requests_are_batched(
    answers: dict[str, Any], way: str
) -> None:
    assert answers[f"w8a8, int8, {way}"]["tokens"] == answers["w8a8, int8"]["tokens"]


def test_the_fused_forward_takes_it(answers: dict[str, Any]) -> None:
    assert "decoder layers are fused" in " ".join(answers["w8a8, int8"]["log"])


@pytest.mark.parametrize(
    ("kernels", "arguments", "reason"),
    [
        ("0", INT8, f"{VARIABLE} leaves it out"),
        ("1", INT8 | {"dtype": "float16"}, "activations are torch.float16"),
    ],
)
def test_where_our_kernels_cannot_run_it_is_refused_with_the_reason(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kernels: str,
    arguments: dict[str, str],
    reason: str,
) -> None:
    monkeypatch.setenv(VARIABLE, kernels)
    question = {"model": str(model), "prompts": prompts(), "arguments": arguments}
    with pytest.raises(ProcessFailed, match=f"int8_per_token_head on a CPU: {reason}"):
        run_in_vllm("tests.engine.cpu.runs:generate", question, tmp_path)
