"""vLLM with blocks loaded by Tunan against transformers on the same checkpoint, token for token."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.converted import convert, convert_sample
from tests.engine.vllm_process import run_in_vllm

MODELS = {
    "llama": (),
    "qwen2": ("--tensor-parallel-size", "1"),
    "deepseek-v2-lite": (),
    "deepseek-v3": ("--tensor-parallel-size", "1"),
    "deepseek-v3-fp8": (),
    "deepseek-v3-mtp": ("--tensor-parallel-size", "1"),
}

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def divergences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    scratch = tmp_path_factory.mktemp("parity")
    models = {name: str(convert(name, scratch, *options)) for name, options in MODELS.items()}
    if sample := convert_sample(scratch):
        models["sample"] = str(sample)
    question = {"models": models, "real": ["sample"], "dtype": "float32"}
    found: dict[str, Any] = run_in_vllm(
        "tests.engine.generation:compare_all", question, Path(scratch), seconds=500
    )
    return found


@pytest.mark.parametrize("model", MODELS)
def test_every_token_is_that_of_transformers_in_float32(
    divergences: dict[str, Any], model: str
) -> None:
    assert divergences[model] == [None] * 6


def test_every_token_of_the_real_sample_model_is_that_of_transformers(
    divergences: dict[str, Any],
) -> None:
    if "sample" not in divergences:
        pytest.skip("pip cannot fetch the sample model here")
    assert divergences["sample"] == [None] * 3
