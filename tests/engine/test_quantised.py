"""vLLM on what `tunan convert --quantize` wrote: its own loader and kernels, and ours."""

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


STOCK, OURS = "0", "1"  # TUNAN_CPU_KERNELS


@pytest.mark.parametrize(
    ("family", "scheme", "load_format", "kernels", "options"),
    [
        ("llama", "w8a8", "auto", STOCK, ()),
        ("qwen2", "w8a8", "tunan", STOCK, ("--tensor-parallel-size", "1")),
        ("llama", "w4a8", "auto", STOCK, ()),
        ("llama", "w8a8", "tunan", OURS, ()),
        ("llama", "w4a8", "tunan", OURS, ()),
    ],
)
def test_vllm_computes_what_the_integers_say(
    family: str,
    scheme: str,
    load_format: str,
    kernels: str,
    options: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TUNAN_CPU_KERNELS", kernels)
    model = convert(family, tmp_path, "--quantize", scheme, "--no-report", *options)
    question = {"model": str(model), "dtype": "bfloat16", "load_format": load_format}
    answers: Any = run_in_vllm("tests.engine.generation:vllm_tokens", question, tmp_path / "run")
    reference = reference_model(tmp_path / f"{family}-source", model, torch.bfloat16)
    for prompt, tokens in zip(prompts(), answers, strict=True):
        assert shortfall(reference, prompt, tokens) < NEAR
