"""vllm-ascend's own loaders and operators on what `tunan convert --quantize w8a8` wrote."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ascend.conftest import PROMPTS, correct_scale
from tests.ascend.emulated import Outcome, generate, run_emulated
from tests.quantised import next_logprobs, reference_model, routed_as, shortfall
from tunan.cli.main import main

pytestmark = pytest.mark.ascend

# The device and the reference round every intermediate result to bfloat16, in another order.
NEAR = 0.15
# Nor do they score an expert or a group of experts alike: of scores in [0, 1] this much may swap.
TIE = 0.03
TOKENS = 12


def convert(source: Path, directory: Path, *options: str) -> Path:
    converted = directory / "w8a8"
    words = ["convert", str(source), str(converted), "--quantize", "w8a8", "--no-report"]
    assert main([*words, *options]) == 0
    return converted


def run(model: Path, engine: dict[str, Any] | None = None, **options: Any) -> Outcome:
    greedy = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True, "logprobs": 5}
    requests = [{"prompt": prompt, **greedy} for prompt in PROMPTS]
    return generate(model, requests, engine={"dtype": "bfloat16", **(engine or {})}, **options)


def check(outcome: Outcome, model: Any) -> None:
    for prompt, answer in zip(PROMPTS, outcome.result, strict=True):
        check_answer(prompt, answer, model)


def check_answer(prompt: list[int], answer: dict[str, Any], model: Any) -> None:
    """Holds tokens and likeliest log-probabilities to the reference."""
    expected = next_logprobs(model, prompt)
    for token, found in answer["logprobs"].items():
        assert abs(found - expected[int(token)]) < NEAR
    (tokens,) = answer["tokens"]
    assert len(tokens) == TOKENS
    assert shortfall(model, prompt, tokens) < NEAR


def test_a_dense_model_computes_what_its_eight_bits_say(llama: Path, tmp_path: Path) -> None:
    quantised = convert(llama, tmp_path)
    outcome = run(quantised)
    check(outcome, reference_model(llama, quantised, torch.bfloat16))
    products = [line for line in outcome.trace if line.startswith("aclnnQuantMatmul")]
    assert products
    assert all("x2=DT_INT8" in line for line in products)


@pytest.mark.long
def test_biases_are_added_to_eight_bit_products(qwen2: Path, tmp_path: Path) -> None:
    quantised = convert(qwen2, tmp_path)
    check(run(quantised), reference_model(qwen2, quantised, torch.bfloat16))


def run_routed(model: Path) -> Outcome:
    """As `run`, with the experts that each token went to."""
    task = json.dumps({"model": str(model), "prompts": PROMPTS, "tokens": TOKENS})
    return run_emulated(
        ["-m", "tests.ascend.programs.routed", task],
        model,
        seconds=280,
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
    )


def check_routed(outcome: Outcome, model: Any) -> None:
    """Holds tokens and log-probabilities to the reference sent to the device's experts, and the
    device's choice of them to the reference's own."""
    for prompt, answer in zip(PROMPTS, outcome.result, strict=True):
        with routed_as(model, answer["experts"]) as behind:
            check_answer(prompt, answer, model)
        assert behind
        assert max(behind) < TIE


@pytest.mark.long
def test_experts_compute_what_their_eight_bits_say(deepseek_v2: Path, tmp_path: Path) -> None:
    quantised = convert(deepseek_v2, tmp_path)
    outcome = run_routed(quantised)
    model = reference_model(deepseek_v2, quantised, torch.bfloat16)
    correct_scale(model, deepseek_v2)
    check_routed(outcome, model)
    assert outcome.operators() >= {"aclnnDynamicQuantV2", "aclnnGroupedMatmulWeightNz"}


@pytest.mark.long
def test_v3_with_a_query_latent_computes_what_its_eight_bits_say(
    deepseek_v3: Path, tmp_path: Path
) -> None:
    quantised = convert(deepseek_v3, tmp_path)
    model = reference_model(deepseek_v3, quantised, torch.bfloat16)
    check_routed(run_routed(quantised), model)


@pytest.mark.long
def test_two_devices_cut_eight_bit_layers_as_one_has_them(llama: Path, tmp_path: Path) -> None:
    quantised = convert(llama, tmp_path)
    outcome = run(quantised, {"tensor_parallel_size": 2}, devices=2)
    check(outcome, reference_model(llama, quantised, torch.bfloat16))
