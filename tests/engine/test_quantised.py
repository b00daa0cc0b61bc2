"""Stock vLLM on what `tunan convert --quantize` wrote, by its own loader and by ours."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.converted import convert
from tests.engine.generation import prompts
from tests.engine.vllm_process import run_in_vllm
from tests.quantised import reference_model, shortfall

pytestmark = pytest.mark.engine

# vLLM and the reference round every intermediate result to bfloat16, in another order.
NEAR = 0.15


@pytest.mark.parametrize(
    ("family", "load_format", "options"),
    [
        ("llama", "auto", ()),
        ("llama", "tunan", ()),
        ("qwen2", "tunan", ("--tensor-parallel-size", "1")),
    ],
)
def test_stock_vllm_computes_what_eight_bits_say(
    family: str, load_format: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    model = convert(family, tmp_path, "--quantize", "w8a8", "--no-report", *options)
    question = {"model": str(model), "dtype": "bfloat16", "load_format": load_format}
    answers: Any = run_in_vllm("tests.engine.generation:vllm_tokens", question, tmp_path / "run")
    reference = reference_model(tmp_path / f"{family}-source", model, torch.bfloat16)
    for prompt, tokens in zip(prompts(), answers, strict=True):
        assert shortfall(reference, prompt, tokens) < NEAR
