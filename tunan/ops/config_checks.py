"""What of a configuration would make transformers fail, named by key and value beforehand."""

from collections.abc import Mapping
from typing import Any

from tunan.checkpoint.architectures import (
    ARCHITECTURES,
    architecture_of,
    expected_tensors,
    head_size,
    key_value_heads,
    number,
    optional_number,
)
from tunan.errors import CheckFailedError, UsageError

# transformers' name of each architecture that it has modelling code of its own for.
MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
}


def check_architecture(config: Mapping[str, Any]) -> str:
    """The architecture's name; raises UsageError for one that cannot be audited."""
    named: Any = config.get("architectures")
    if named not in [[name] for name in ARCHITECTURES]:
        found = ", ".join(map(str, named)) if isinstance(named, list) else str(named or "")
        raise UsageError(
            f"config.json: unknown architecture ({found or 'none'}); "
            f"the audit knows {', '.join(MODEL_TYPES)}"
        )
    name = architecture_of(config).name
    if name not in MODEL_TYPES:
        raise UsageError(
            f"{name}: transformers has no code of its own for it (the checkpoint's is not "
            f"run); the audit knows {', '.join(MODEL_TYPES)}"
        )
    return name


def check_sizes(config: Mapping[str, Any]) -> None:
    """Raises CheckFailedError for sizes that fit no model of the architecture."""
    architecture = architecture_of(config)
    number(config, "num_hidden_layers")
    expected_tensors(dict(config) | {"num_hidden_layers": 1, "first_k_dense_replace": 1})
    heads = number(config, "num_attention_heads")
    if heads % key_value_heads(config):
        raise _wrong(config, "num_key_value_heads", f"must divide the {heads} attention heads")
    if architecture.attention == "gqa":
        _check_head(config, heads)
    elif number(config, "qk_rope_head_dim") % 2:
        raise _wrong(config, "qk_rope_head_dim", "must be even")
    if architecture.experts and config.get("n_routed_experts") is not None:
        _check_experts(config)
    for key in ("rms_norm_eps", "rope_theta", "routed_scaling_factor"):
        value = config.get(key, 1.0)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or value <= 0:
            raise _wrong(config, key, "must be a number more than 0")


def check_activation(config: Mapping[str, Any]) -> None:
    """Raises CheckFailedError for an activation that transformers does not know. Imports it."""
    from transformers.activations import ACT2FN

    value = config.get("hidden_act", "silu")
    if not isinstance(value, str) or value not in ACT2FN:
        raise _wrong(config, "hidden_act", "is no activation of transformers (DeepSeek's is silu)")


def check_prompt(config: Mapping[str, Any], prompt_tokens: int) -> None:
    """Raises UsageError where a prompt and the token after it have more than the positions."""
    if config.get("max_position_embeddings") is None:
        return
    positions = number(config, "max_position_embeddings")
    if prompt_tokens >= positions:
        raise UsageError(
            f"--prompt-tokens {prompt_tokens}: with the token that follows more than the model's "
            f"{positions} positions (max_position_embeddings in config.json)"
        )


def _check_head(config: Mapping[str, Any], heads: int) -> None:
    hidden = number(config, "hidden_size")
    if not optional_number(config, "head_dim", 0) and hidden % heads:
        raise _wrong(config, "num_attention_heads", f"must divide the hidden size {hidden}")
    if head_size(config) % 2:
        raise CheckFailedError(
            f"config.json: heads of {head_size(config)} cannot be rotated; the size must be even"
        )


def _check_experts(config: Mapping[str, Any]) -> None:
    experts = number(config, "n_routed_experts")
    number(config, "moe_intermediate_size")
    if number(config, "num_experts_per_tok") > experts:
        raise _wrong(config, "num_experts_per_tok", f"there are {experts} experts")
    groups = optional_number(config, "n_group", 1) or 1
    if experts % groups:
        raise _wrong(config, "n_group", f"must divide the {experts} experts")
    if (optional_number(config, "topk_group", 1) or 1) > groups:
        raise _wrong(config, "topk_group", f"there are {groups} groups")


def _wrong(config: Mapping[str, Any], key: str, why: str) -> CheckFailedError:
    return CheckFailedError(f"config.json: {key} is {config.get(key)!r}: {why}")
