"""The published vLLM and vllm-ascend, unmodified, on the emulated device."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.ascend.conftest import LENGTH, PROMPTS, Reference
from tests.ascend.emulated import Outcome, generate

pytestmark = pytest.mark.ascend

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": LENGTH, "ignore_eos": True}


def greedy() -> list[dict[str, Any]]:
    return [{"prompt": prompt, **GREEDY} for prompt in PROMPTS]


def tokens(outcome: Outcome) -> list[list[int]]:
    return [answer["tokens"][0] for answer in outcome.result]


@pytest.mark.parametrize(
    "mode", ["FULL_DECODE_ONLY", pytest.param("PIECEWISE", marks=pytest.mark.long)]
)
def test_graph_mode_gives_the_tokens_of_transformers(
    llama: Path, reference: Reference, mode: str
) -> None:
    engine = {"enforce_eager": False, "compilation_config": {"cudagraph_mode": mode}}
    outcome = generate(llama, greedy(), engine=engine)
    assert tokens(outcome) == [reference(llama, prompt) for prompt in PROMPTS]
    assert any(line.startswith("replay ") for line in outcome.trace)


@pytest.mark.long
def test_qwen2_gives_the_tokens_of_transformers(qwen2: Path, reference: Reference) -> None:
    outcome = generate(qwen2, greedy())
    assert tokens(outcome) == [reference(qwen2, prompt) for prompt in PROMPTS]


@pytest.mark.long
@pytest.mark.parametrize("parallel", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_two_devices_give_the_tokens_of_transformers(
    llama: Path, reference: Reference, parallel: str
) -> None:
    outcome = generate(llama, greedy(), engine={parallel: 2}, devices=2)
    assert tokens(outcome) == [reference(llama, prompt) for prompt in PROMPTS]
    assert any(name.startswith("Hccl") for name in outcome.operators())


LONG = [(7 * at) % 500 + 3 for at in range(300)]
ONE_ENGINE: dict[str, dict[str, Any]] = {
    "greedy": {"prompt": PROMPTS[0], **GREEDY},
    "seeded": {"prompt": PROMPTS[0], "temperature": 0.8, "seed": 3, "max_tokens": 8},
    "seeded again": {"prompt": PROMPTS[0], "temperature": 0.8, "seed": 3, "max_tokens": 8},
    "top k of 1": {"prompt": PROMPTS[0], "temperature": 1.5, "top_k": 1, "max_tokens": 8},
    "tiny top p": {"prompt": PROMPTS[0], "temperature": 1.5, "top_p": 1e-6, "max_tokens": 8},
    "min p of 1": {"prompt": PROMPTS[0], "temperature": 1.5, "min_p": 1.0, "max_tokens": 8},
    "top k and p": {"prompt": PROMPTS[0], "temperature": 0.7, "top_k": 5, "top_p": 0.9, "seed": 1},
    "penalties": {
        "prompt": PROMPTS[1],
        "temperature": 0,
        "repetition_penalty": 1e6,
        "max_tokens": LENGTH,
        "ignore_eos": True,
    },
    "logprobs": {"prompt": PROMPTS[0], "temperature": 0, "logprobs": 3, "max_tokens": 2},
    "bias": {"prompt": PROMPTS[0], "temperature": 0, "logit_bias": {"9": 100.0}, "max_tokens": 3},
    "allowed": {
        "prompt": PROMPTS[0],
        "temperature": 1.0,
        "seed": 2,
        "allowed_token_ids": [9, 17, 40],
        "max_tokens": 8,
    },
    "counted": {
        "prompt": PROMPTS[1],
        "temperature": 0,
        "frequency_penalty": 1.5,
        "presence_penalty": 0.5,
        "max_tokens": 8,
        "ignore_eos": True,
    },
    "prompt logprobs": {"prompt": PROMPTS[0], "prompt_logprobs": 1, "max_tokens": 1},
    "three": {"prompt": PROMPTS[0], "temperature": 1.0, "n": 3, "seed": 5, "max_tokens": 4},
    "long": {"prompt": LONG, **GREEDY},
    "long again": {"prompt": LONG, **GREEDY},
}


@pytest.fixture(scope="module")
def one_engine(llama: Path, reference: Reference) -> dict[str, Any]:
    """One engine, in processes of its own, whose steps take 128 tokens of a prompt at a time."""
    first = reference(llama, PROMPTS[0])[0]
    ends_at_first = {"stop_token_ids": [first], "min_tokens": 3, "max_tokens": 8}
    requests = ONE_ENGINE | {
        "at least three": {"prompt": PROMPTS[0], "temperature": 0, **ends_at_first},
        "without the first": {"prompt": PROMPTS[0], **GREEDY, "bad_tokens": [first]},
    }
    settings = {"max_num_batched_tokens": 128, "enable_chunked_prefill": True}
    outcome = generate(
        llama,
        [dict(request) for request in requests.values()],
        engine=settings | {"enable_prefix_caching": True},
        VLLM_ENABLE_V1_MULTIPROCESSING="1",
    )
    assert "aclnnFusedInferAttentionScoreV3" in outcome.operators()
    return dict(zip(requests, outcome.result, strict=True))


@pytest.fixture(scope="module")
def model(llama: Path) -> Any:
    """The same model in transformers, float32."""
    return AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32).eval()


def logprobs(model: Any, prompt: list[int]) -> torch.Tensor:
    """Of each next token [S, V]."""
    with torch.no_grad():
        result: torch.Tensor = torch.log_softmax(model(torch.tensor([prompt])).logits[0], -1)
    return result


def test_eager_mode_gives_the_tokens_of_transformers(
    llama: Path, reference: Reference, one_engine: dict[str, Any]
) -> None:
    assert one_engine["greedy"]["tokens"] == [reference(llama, PROMPTS[0])]


def test_a_prompt_in_parts_gives_the_tokens_of_transformers(
    llama: Path, reference: Reference, one_engine: dict[str, Any]
) -> None:
    assert one_engine["long"]["tokens"] == [reference(llama, LONG)]


def test_a_cached_prefix_gives_the_same_tokens(one_engine: dict[str, Any]) -> None:
    assert one_engine["long again"]["cached"] == 256
    assert one_engine["long again"]["tokens"] == one_engine["long"]["tokens"]


def test_a_seed_gives_the_same_tokens(one_engine: dict[str, Any]) -> None:
    assert one_engine["seeded"]["tokens"] == one_engine["seeded again"]["tokens"]
    assert one_engine["seeded"]["tokens"][0] != one_engine["greedy"]["tokens"][0][:8]


@pytest.mark.parametrize("name", ["top k of 1", "tiny top p", "min p of 1"])
def test_sampling_that_leaves_one_token_is_greedy(one_engine: dict[str, Any], name: str) -> None:
    assert one_engine[name]["tokens"][0] == one_engine["greedy"]["tokens"][0][:8]


def test_top_k_and_p_together_give_tokens(one_engine: dict[str, Any]) -> None:
    assert len(one_engine["top k and p"]["tokens"][0]) == 16


def test_a_penalty_for_repetition_leaves_no_token_twice(one_engine: dict[str, Any]) -> None:
    made = one_engine["penalties"]["tokens"][0]
    assert len(set(made)) == len(made)
    assert not set(made) & set(PROMPTS[1])


def test_logprobs_are_of_the_likeliest_tokens(one_engine: dict[str, Any]) -> None:
    chosen = str(one_engine["greedy"]["tokens"][0][0])
    found = one_engine["logprobs"]["logprobs"]
    assert max(found, key=found.get) == chosen
    assert sum(math.exp(value) for value in found.values()) <= 1 + 1e-6


def test_logprobs_are_those_of_transformers(one_engine: dict[str, Any], model: Any) -> None:
    expected = logprobs(model, PROMPTS[0])[-1]
    for token, value in one_engine["logprobs"]["logprobs"].items():
        assert value == pytest.approx(float(expected[int(token)]), abs=1e-3)


def test_logprobs_of_a_prompt_are_those_of_transformers(
    one_engine: dict[str, Any], model: Any
) -> None:
    expected = logprobs(model, PROMPTS[0])
    found = one_engine["prompt logprobs"]["prompt_logprobs"]
    assert len(found) == len(PROMPTS[0]) - 1
    for at, token in enumerate(PROMPTS[0][1:]):
        assert found[at][str(token)] == pytest.approx(float(expected[at, token]), abs=1e-3)


def test_penalties_count_what_was_made(one_engine: dict[str, Any], model: Any) -> None:
    made: list[int] = []
    for _ in range(8):
        scores = logprobs(model, PROMPTS[1] + made)[-1]
        counts = torch.bincount(torch.tensor(made, dtype=torch.long), minlength=len(scores))
        made.append(int((scores - 1.5 * counts - 0.5 * counts.gt(0)).argmax()))
    assert one_engine["counted"]["tokens"] == [made]


def test_only_allowed_tokens_are_made(one_engine: dict[str, Any]) -> None:
    assert set(one_engine["allowed"]["tokens"][0]) <= {9, 17, 40}


def test_a_stop_token_is_not_made_before_the_least_number(one_engine: dict[str, Any]) -> None:
    first = one_engine["greedy"]["tokens"][0][0]
    made = one_engine["at least three"]["tokens"][0]
    assert len(made) >= 3
    assert first not in made[:3]


def test_a_bad_word_is_never_made(one_engine: dict[str, Any]) -> None:
    first = one_engine["greedy"]["tokens"][0][0]
    assert first not in one_engine["without the first"]["tokens"][0]


def test_a_bias_decides(one_engine: dict[str, Any]) -> None:
    assert one_engine["bias"]["tokens"] == [[9, 9, 9]]


def test_samples_of_one_request_differ(one_engine: dict[str, Any]) -> None:
    first, second, third = one_engine["three"]["tokens"]
    assert not first == second == third
