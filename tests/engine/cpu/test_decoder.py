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
# A model, and the instruction set of vLLM's attention: why it runs, None where ours does. `other`
# is a Llama by another name, of which no layer is fused.
CHOICES = {
    ("other-w8a8", "amx"): "it is faster with AMX over a bfloat16 cache",
    ("other-w8a8", "vec"): None,
    ("llama-w8a8", "amx"): None,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    # Groups of three heads, one of keys, a tied embedding, sizes that are no power of two.
    shape = {"hidden_size": 192, "num_attention_heads": 3, "num_key_value_heads": 1}
    sources = {
        "llama": write_llama(folder / "llama"),
        "other": write_llama(folder / "other"),
        "qwen2": write_qwen2(folder / "qwen2"),
        "smollm": write_llama(folder / "smollm", tie_word_embeddings=True, **shape),
    }
    found: dict[str, str] = {}
    for name in sorted({model for model, *_ in (*CASES, *CHOICES)}):
        source, scheme = name.split("-")
        head = source != "smollm"
        found[name] = str(quantise(sources[source], folder / name, scheme, head=head))
    config = Path(found["other-w8a8"], "config.json")
    config.write_text(config.read_text().replace("LlamaForCausalLM", "InternLM3ForCausalLM"))
    return found


@pytest.fixture(scope="module")
def answers(models: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    plain = {"model": models["llama-w8a8"], "dtype": "bfloat16", "kv_cache": "auto"}
    asked: dict[Any, tuple[str, dict[str, Any]]] = {
        (name, dtype, cache): (
            "compare",
            {"model": models[name], "dtype": dtype, "kv_cache": cache},
        )
        for name, dtype, cache in (*CASES, FLOAT32)
    }
    asked |= {"dry run": ("dry_run", plain), "refusals": ("refusals", plain)}
    asked |= {
        choice: ("attention", plain | {"model": models[choice[0]], "isa": choice[1]})
        for choice in CHOICES
    }
    scratch: Path = tmp_path_factory.mktemp("run")
    found = run_in_vllm("tests.engine.cpu.direct:ask_all", list(asked.values()), scratch)
    return dict(zip(asked, found, strict=True))


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_fused_layers_give_the_bits_of_unfused_ones(answers: dict[Any, Any], case: Any) -> None:
    assert answers[case] == {"fused": True, "difference": 0.0}


def test_float32_differs_by_the_steps_of_int8_activations_only(answers: dict[Any, Any]) -> None:
    """Sums are in another order there, and nothing rounds the difference away."""
    assert answers[FLOAT32]["fused"]
    assert answers[FLOAT32]["difference"] < 0.2


def test_a_step_without_requests_compiles_and_runs_no_layer(answers: dict[Any, Any]) -> None:
    assert answers["dry run"] == [7, 256]


@pytest.mark.parametrize("choice", CHOICES, ids=" ".join)
def test_a_bfloat16_cache_is_left_to_vllms_amx_kernels_where_no_layer_is_fused(
    answers: dict[Any, Any], choice: tuple[str, str]
) -> None:
    assert answers[choice] == CHOICES[choice]


def test_what_is_not_covered_is_named(answers: dict[Any, Any]) -> None:
    assert answers["refusals"] == {
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
