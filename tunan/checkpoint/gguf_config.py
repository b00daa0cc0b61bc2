"""A Hugging Face config.json from a GGUF file's metadata."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tunan.errors import CheckFailedError, UsageError

# Llama 3.1's own rope scaling but for its factor: llama.cpp keeps only what follows from it.
LLAMA3_ROPE = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

# expert_gating_func
GATING_SOFTMAX, GATING_SIGMOID = 1, 2


@dataclass(frozen=True)
class GGUFDescription:
    """What a config is derived from: metadata, tensor names, and the factors of `rope_freqs`."""

    path: Path
    metadata: dict[str, Any]
    tensors: Collection[str]
    rope_factors: tuple[float, ...] = ()

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture"))

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `<architecture>.key`; float32 as the decimal number it was written from."""
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        return float(str(np.float32(value))) if isinstance(value, float) else value

    def count(self, key: str) -> int:
        """A required positive integer."""
        value = self.get(key)
        if isinstance(value, list) and value and len(set(value)) == 1:
            value = value[0]
        if isinstance(value, list):
            raise UsageError(f"{self.path}: {self._full(key)} differs from layer to layer")
        if type(value) is not int or value <= 0:
            raise CheckFailedError(f"{self.path}: metadata {self._full(key)} is {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number; required where there is no default."""
        value = self.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise CheckFailedError(f"{self.path}: metadata {self._full(key)} is {value!r}")
        return float(value)

    def token(self, role: str) -> int | None:
        """The id of the `bos`, `eos` or `padding` token."""
        value = self.metadata.get(f"tokenizer.ggml.{role}_token_id")
        return value if type(value) is int else None

    def _full(self, key: str) -> str:
        return f"{self.architecture}.{key}"


def config_of(description: GGUFDescription, vocabulary: int) -> dict[str, Any]:
    """The config.json for a file with `vocabulary` rows in its embedding.

    Raises `UsageError` for an architecture Tunan does not read, `CheckFailedError` where
    metadata is missing or of the wrong kind.
    """
    architecture = description.architecture
    if architecture not in ARCHITECTURES:
        raise UsageError(
            f"{description.path}: GGUF architecture {architecture!r}; "
            f"Tunan reads {', '.join(ARCHITECTURES)}"
        )
    common = _common(description, vocabulary)
    stated = {key: value for key, value in common.items() if value is not None}
    return stated | ARCHITECTURES[architecture](description)


def _common(description: GGUFDescription, vocabulary: int) -> dict[str, Any]:
    heads = description.count("attention.head_count")
    return {
        "hidden_act": "silu",
        "hidden_size": description.count("embedding_length"),
        "intermediate_size": description.count("feed_forward_length"),
        "max_position_embeddings": description.count("context_length"),
        "num_attention_heads": heads,
        "num_hidden_layers": description.count("block_count"),
        "num_key_value_heads": description.count("attention.head_count_kv")
        if description.get("attention.head_count_kv") is not None
        else heads,
        "rms_norm_eps": description.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": description.number("rope.freq_base", 10000.0),
        # llama.cpp leaves the head out where it is the embedding.
        "tie_word_embeddings": "output.weight" not in description.tensors,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": vocabulary,
        "bos_token_id": description.token("bos"),
        "eos_token_id": description.token("eos"),
        "pad_token_id": description.token("padding"),
    }


def _llama(description: GGUFDescription) -> dict[str, Any]:
    if description.get("expert_count"):
        raise UsageError(f"{description.path}: a mixture of experts of architecture 'llama'")
    heads, width = description.count("attention.head_count"), description.count("embedding_length")
    head = description.get("attention.key_length", description.get("rope.dimension_count"))
    if head is not None and (type(head) is not int or head <= 0 or head % 2):
        raise CheckFailedError(f"{description.path}: head dimension {head!r}")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": "blk.0.attn_q.bias" in description.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in description.tensors,
        "head_dim": head if head is not None else width // heads,
        **_rope_scaling(description),
    }


def _qwen2(description: GGUFDescription) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        **_rope_scaling(description),
        "use_sliding_window": False,
    }


def _deepseek2(description: GGUFDescription) -> dict[str, Any]:
    sigmoid = description.get("expert_gating_func", GATING_SOFTMAX) == GATING_SIGMOID
    version = "3" if sigmoid else "2"
    rotary = description.count("rope.dimension_count")
    # Files from before the key and value latents were kept apart give the lengths per head.
    key = "attention.key_length_mla"
    value = "attention.value_length_mla"
    if description.get(key) is None:
        key, value = "attention.key_length", "attention.value_length"
    query = description.get("attention.q_lora_rank")
    return {
        "architectures": [f"DeepseekV{version}ForCausalLM"],
        "model_type": f"deepseek_v{version}",
        "attention_bias": False,
        "first_k_dense_replace": description.get("leading_dense_block_count", 0),
        "kv_lora_rank": description.count("attention.kv_lora_rank"),
        "moe_intermediate_size": description.count("expert_feed_forward_length"),
        "moe_layer_freq": 1,
        "n_routed_experts": description.count("expert_count"),
        "n_shared_experts": description.count("expert_shared_count"),
        "norm_topk_prob": bool(description.get("expert_weights_norm", sigmoid)),
        "num_experts_per_tok": description.count("expert_used_count"),
        "num_key_value_heads": description.count("attention.head_count"),
        "q_lora_rank": query,
        "qk_nope_head_dim": description.count(key) - rotary,
        "qk_rope_head_dim": rotary,
        "routed_scaling_factor": description.number("expert_weights_scale", 1.0),
        "scoring_func": "sigmoid" if sigmoid else "softmax",
        "v_head_dim": description.count(value),
        **_expert_groups(description, sigmoid),
        **_rope_scaling(description),
    }


def _expert_groups(description: GGUFDescription, sigmoid: bool) -> dict[str, Any]:
    if description.get("expert_group_count") is not None:
        groups = description.count("expert_group_count")
        chosen = description.count("expert_group_used_count")
    elif sigmoid or description.get("attention.q_lora_rank") is not None:
        raise UsageError(
            f"{description.path}: an old GGUF that does not say how the experts are grouped; "
            "convert the model with a newer llama.cpp or take its safetensors"
        )
    else:
        groups = chosen = 1  # DeepSeek-V2-Lite, the only one without a query latent
    without_bias = "greedy" if groups == 1 else "group_limited_greedy"
    return {
        "n_group": groups,
        "topk_group": chosen,
        "topk_method": "noaux_tc" if sigmoid else without_bias,
    }


def _rope_scaling(description: GGUFDescription) -> dict[str, Any]:
    if description.rope_factors:
        return {"rope_scaling": _llama3_scaling(description)}
    kind = description.get("rope.scaling.type", "none")
    if kind == "none":
        return {}
    if kind not in ("linear", "yarn"):
        raise UsageError(f"{description.path}: rope scaling {kind!r}; Tunan knows linear and yarn")
    scaling = {
        "type": kind,
        "rope_type": kind,
        "factor": description.number("rope.scaling.factor"),
    }
    if kind == "yarn":
        scaling |= _yarn(description)
    return {"rope_scaling": scaling}


def _yarn(description: GGUFDescription) -> dict[str, Any]:
    scaling: dict[str, Any] = {
        "original_max_position_embeddings": description.count(
            "rope.scaling.original_context_length"
        )
    }
    if description.get("rope.scaling.yarn_log_multiplier") is None:
        return scaling
    # llama.cpp keeps 0.1 * mscale_all_dim, to which the whole DeepSeek family's mscale is equal.
    mscale = round(10 * description.number("rope.scaling.yarn_log_multiplier"), 6)
    return scaling | {
        "beta_fast": description.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": description.number("rope.scaling.yarn_beta_slow", 1.0),
        "mscale": mscale,
        "mscale_all_dim": mscale,
    }


def _llama3_scaling(description: GGUFDescription) -> dict[str, Any]:
    """Finds the factor that yields the stored per-frequency factors, or says that none does."""
    factors = np.array(description.rope_factors)
    scaling = {"rope_type": "llama3", "factor": float(factors.max()), **LLAMA3_ROPE}
    theta = description.number("rope.freq_base", 10000.0)
    expected = llama3_factors(theta, 2 * len(factors), scaling)
    if not np.allclose(factors, expected, rtol=1e-3):
        raise UsageError(f"{description.path}: rope_freqs other than Llama 3.1's rope scaling")
    return scaling


def llama3_factors(theta: float, head: int, scaling: dict[str, Any]) -> np.ndarray[Any, Any]:
    """By how much Llama 3.1 lengthens each of the head / 2 wavelengths, float64.

    Source: the Llama 3.1 reference implementation; transformers' rope_type `llama3`.
    """
    wavelength = 2 * np.pi * theta ** (np.arange(0, head, 2) / head)
    original = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = np.clip((original / wavelength - low) / (high - low), 0.0, 1.0)
    return np.asarray(1.0 / ((1.0 - smooth) / scaling["factor"] + smooth))


ARCHITECTURES: dict[str, Callable[[GGUFDescription], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "deepseek2": _deepseek2,
}
