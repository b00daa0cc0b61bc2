"""Models and references that the tests on the emulated device share."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.models import write_deepseek_v2_lite, write_deepseek_v3, write_llama, write_qwen2

PROMPTS = [[5, 7, 11, 13, 2, 40], [1, 2, 3, 300, 401]]
LENGTH = 16

Reference = Callable[[Path, list[int]], list[int]]


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen2(tmp_path_factory.mktemp("qwen2"))


@pytest.fixture(scope="session")
def deepseek_v2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_deepseek_v2_lite(tmp_path_factory.mktemp("deepseek-v2"))


@pytest.fixture(scope="session")
def deepseek_v3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_deepseek_v3(tmp_path_factory.mktemp("deepseek-v3"))


def correct_scale(model: Any, directory: Path) -> None:
    """Gives transformers' DeepSeek-V2 the attention scale that YaRN asks for.

    DeepSeek's own code and vLLM multiply it by the square of YaRN's factor; transformers does so
    for V3 and, in 5.5.4, not for V2.
    """
    rope = json.loads((directory / "config.json").read_text())["rope_scaling"]
    factor = 0.1 * rope["mscale_all_dim"] * math.log(rope["factor"]) + 1
    for layer in model.model.layers:
        layer.self_attn.scaling = layer.self_attn.qk_head_dim**-0.5 * factor**2


@pytest.fixture(scope="session")
def reference() -> Reference:
    """Greedy tokens by transformers on the CPU in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    def tokens(model: Path, prompt: list[int]) -> list[int]:
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        if loaded.config.model_type == "deepseek_v2":
            correct_scale(loaded, model)
        made = loaded.generate(
            torch.tensor([prompt]),
            max_new_tokens=LENGTH,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        return [int(token) for token in made[0][len(prompt) :]]

    return tokens
