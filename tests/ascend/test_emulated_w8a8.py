"""vllm-ascend's own loaders and operators for 8-bit checkpoints, on the emulated device."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ascend.conftest import PROMPTS
from tests.ascend.emulated import Outcome, generate
from tests.ascend.w8a8 import reference_logprobs, write_w8a8

pytestmark = pytest.mark.ascend

REQUEST: dict[str, Any] = {"prompt": PROMPTS[0], "temperature": 0, "max_tokens": 8, "logprobs": 5}


def run(model: Path) -> Outcome:
    return generate(model, [dict(REQUEST)], engine={"dtype": "bfloat16"})


def distance(outcome: Outcome, expected: torch.Tensor) -> float:
    """The largest difference of the likeliest tokens' log-probabilities."""
    found = outcome.result[0]["logprobs"]
    return float(max(abs(value - expected[int(token)]) for token, value in found.items()))


def test_a_dense_model_computes_what_its_eight_bits_say(llama: Path, tmp_path: Path) -> None:
    quantised = write_w8a8(llama, tmp_path / "w8a8")
    outcome = run(quantised)
    assert distance(outcome, reference_logprobs(llama, quantised, PROMPTS[0])) < 0.05
    products = [line for line in outcome.trace if line.startswith("aclnnQuantMatmul")]
    assert products
    assert all("x2=DT_INT8" in line for line in products)


@pytest.mark.long
def test_experts_of_eight_bits_are_near_the_model_s_own(deepseek_v2: Path, tmp_path: Path) -> None:
    plain = generate(deepseek_v2, [dict(REQUEST)], engine={"dtype": "bfloat16"})
    quantised = run(write_w8a8(deepseek_v2, tmp_path / "w8a8"))
    own, rounded = plain.result[0], quantised.result[0]
    assert rounded["tokens"][0][0] == own["tokens"][0][0]
    best = str(own["tokens"][0][0])
    assert abs(rounded["logprobs"][best] - own["logprobs"][best]) < 0.3
    assert quantised.operators() >= {"aclnnDynamicQuantV2", "aclnnGroupedMatmulWeightNz"}
