"""The fused decoder layers against vLLM's own layers with our kernels, bit for bit."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.cpu.quantised import quantise
from tests.engine.vllm_process import run_in_vllm
from tests.models import write_llama, write_qwen2

pytestmark = pytest.mark.engine

INT8 = "int8_per_token_head"
CASES = (
    ("llama-w8a8", "bfloat16", "auto"),
    ("llama-w4a8", "bfloat16", "auto"),
    ("qwen2-w8a8", "bfloat16", "auto"),
    ("smollm-w8a8", "bfloat16", INT8),
    ("qwen2-w4a8", "bfloat16", INT8),
)
FLOAT32 = ("llama-w8a8", "float32", "auto")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    # Groups of three heads, one of keys, a tied embedding, sizes that are no power of two.
    shape = {"hidden_size": 192, "num_attention_heads": 3, "num_key_value_heads": 1}
    sources = {
        "llama": write_llama(folder / "llama"),
        "qwen2": write_qwen2(folder / "qwen2"),
        "smollm": write_llama(folder / "smollm", tie_word_embeddings=True, **shape),
    }
    found: dict[str, str] = {}
    for name in sorted({case[0] for case in CASES}):
        source, scheme = name.split("-")
        head = source != "smollm"
        found[name] = str(quantise(sources[source], folder / name, scheme, head=head))
    return found


@pytest.fixture(scope="module")
def compared(models: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    asked = [*CASES, FLOAT32]
    questions = [
        {"model": models[name], "dtype": dtype, "kv_cache": cache} for name, dtype, cache in asked
    ]
    scratch: Path = tmp_path_factory.mktemp("run")
    answers = run_in_vllm("tests.engine.cpu.direct:compare_all", questions, scratch)
    return dict(zip(asked, answers, strict=True))


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_fused_layers_give_the_bits_of_unfused_ones(compared: dict[Any, Any], case: Any) -> None:
    assert compared[case] == {"fused": True, "difference": 0.0}


def test_float32_differs_by_the_steps_of_int8_activations_only(compared: dict[Any, Any]) -> None:
    """Sums are in another order there, and nothing rounds the difference away."""
    assert compared[FLOAT32]["fused"]
    assert compared[FLOAT32]["difference"] < 0.2


def test_a_step_without_requests_compiles_and_runs_no_layer(
    models: dict[str, str], tmp_path: Path
) -> None:
    question = {"model": models["llama-w8a8"], "dtype": "bfloat16", "kv_cache": "auto"}
    assert run_in_vllm("tests.engine.cpu.direct:dry_run", question, tmp_path) == [7, 256]


def test_what_is_not_covered_is_named(models: dict[str, str], tmp_path: Path) -> None:
    question = {"model": models["llama-w8a8"], "dtype": "bfloat16", "kv_cache": "auto"}
    assert run_in_vllm("tests.engine.cpu.direct:refusals", question, tmp_path) == {
        "nothing": None,
        "pipeline": "pipeline parallelism is in use",
        "lora_config": "LoRA is in use",
        "speculative_config": "speculative decoding is in use",
        "kv_transfer_config": "a KV connector is in use",
        "tunan_packed": "self_attn.qkv_proj is neither W8A8 nor W4A8",
        "bias": "the MLP has biases",
        "rotary_emb": "Identity is not a plain rotary embedding",
        "kv_sharing_target_layer_name": "layers share a KV cache",
        "attention": "attention is vLLM's own: it has sinks",
    }
