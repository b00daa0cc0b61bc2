"""vllm-ascend's int8 cache (C8) on what `tunan convert --kv int8` wrote."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ascend.conftest import PROMPTS
from tests.ascend.emulated import Outcome, generate
from tests.quantised import shortfall
from tunan.cli.main import main

pytestmark = [pytest.mark.ascend, pytest.mark.long]

# A static scale a channel costs about as much as bfloat16's own rounding here.
NEAR = 0.3
TOKENS = 12


def run(source: Path, directory: Path, *options: str) -> Outcome:
    model = directory / "c8"
    words = ["convert", str(source), str(model), "--kv", "int8", "--target", "ascend910b"]
    assert main([*words, "--no-report", *options]) == 0
    greedy = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
    requests = [{"prompt": prompt, **greedy} for prompt in PROMPTS]
    return generate(model, requests, engine={"dtype": "bfloat16"})


def check(outcome: Outcome, source: Path) -> None:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).eval()
    for prompt, answer in zip(PROMPTS, outcome.result, strict=True):
        assert len(answer["tokens"][0]) == TOKENS
        assert shortfall(model, prompt, answer["tokens"][0]) < NEAR


def test_a_dense_model_keeps_its_cache_in_eight_bits(llama: Path, tmp_path: Path) -> None:
    outcome = run(llama, tmp_path)
    check(outcome, llama)
    written = [line for line in outcome.trace if line.startswith("aclnnScatterPaKvCache")]
    assert written
    assert all("DT_INT8" in line for line in written)


def test_weights_and_cache_of_eight_bits_go_together(qwen2: Path, tmp_path: Path) -> None:
    outcome = run(qwen2, tmp_path, "--quantize", "w8a8")
    check(outcome, qwen2)
    assert any(line.startswith("aclnnQuantMatmul") for line in outcome.trace)
