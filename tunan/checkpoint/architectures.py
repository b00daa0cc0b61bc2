"""Which model architectures Tunan knows, and the tensors a checkpoint of each must hold.

The inventory is worked out from `config.json` alone, so that a missing, misshapen or
unexpected tensor is named before anything is converted or loaded. Names and shapes are
those of the Hugging Face checkpoints: Llama, Qwen2, DeepSeek-MoE (arXiv 2401.06066),
DeepSeek-V2 (arXiv 2405.04434), DeepSeek-V3/R1 with its multi-token-prediction layers
(arXiv 2412.19437) and DeepSeek-V3.2 with its lightning indexer.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tunan.errors import CheckFailedError, UsageError

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Architecture:
    """What sets one family's checkpoint apart from another's.

    `attention` is "gqa" (separate q, k, v; Llama's kind, heads grouped or not) or "mla"
    (DeepSeek's latent attention). `qkv_bias` is the bias of q, k and v where the
    configuration does not decide it. `indexer` is the sparse attention of V3.2.
    """

    name: str
    attention: Literal["gqa", "mla"]
    experts: bool = False
    qkv_bias: bool = False
    indexer: bool = False


ARCHITECTURES: Mapping[str, Architecture] = {
    known.name: known
    for known in (
        Architecture("LlamaForCausalLM", "gqa"),
        Architecture("Qwen2ForCausalLM", "gqa", qkv_bias=True),
        Architecture("DeepseekForCausalLM", "gqa", experts=True),
        Architecture("DeepseekV2ForCausalLM", "mla", experts=True),
        Architecture("DeepseekV3ForCausalLM", "mla", experts=True),
        Architecture("DeepseekV32ForCausalLM", "mla", experts=True, indexer=True),
    )
}

_LAYER = re.compile(r"^model\.layers\.(\d+)\.")


def architecture_of(config: Mapping[str, Any]) -> Architecture:
    """The architecture a Hugging Face configuration names.

    Raises UsageError if it names none or one that is not known here.
    """
    named = config.get("architectures") or []
    names = list(map(str, named)) if isinstance(named, list) else [repr(named)]
    if len(names) == 1 and names[0] in ARCHITECTURES:
        return ARCHITECTURES[names[0]]
    found = ", ".join(names) or "none"
    raise UsageError(
        f"config.json: unknown architecture ({found}); known are {', '.join(ARCHITECTURES)}"
    )


def layer_of(name: str) -> int | None:
    """The decoder layer a tensor belongs to, None for embeddings, final norm and head."""
    match = _LAYER.match(name)
    return int(match.group(1)) if match else None


def is_recomputed(name: str) -> bool:
    """Whether a stored tensor is dropped: old checkpoints carry the rotary frequencies,
    which every engine computes from the configuration."""
    return name.endswith("rotary_emb.inv_freq")


def number(config: Mapping[str, Any], key: str) -> int:
    """A positive whole number of the configuration; raises CheckFailedError without one."""
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckFailedError(f"config.json: {key} must be a positive whole number, not {value!r}")
    return value


def optional_number(config: Mapping[str, Any], key: str, default: int) -> int:
    """A whole number from 0 on, `default` where the configuration is silent or says null;
    raises CheckFailedError for anything else."""
    value = default if config.get(key) is None else config[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CheckFailedError(f"config.json: {key} must be a whole number, not {value!r}")
    return value


def head_size(config: Mapping[str, Any]) -> int:
    """Size of one attention head of the "gqa" families."""
    return optional_number(config, "head_dim", 0) or (
        number(config, "hidden_size") // number(config, "num_attention_heads")
    )


def key_value_heads(config: Mapping[str, Any]) -> int:
    """Number of key/value heads; as many as query heads where the configuration is silent."""
    heads = number(config, "num_attention_heads")
    return optional_number(config, "num_key_value_heads", heads) or heads


def mtp_layers(config: Mapping[str, Any]) -> range:
    """Indices of the multi-token-prediction layers; they follow the model's own."""
    start = number(config, "num_hidden_layers")
    return range(start, start + optional_number(config, "num_nextn_predict_layers", 0))


def has_experts(config: Mapping[str, Any], layer: int) -> bool:
    """Whether a layer is a mixture of experts (vLLM's own rule in deepseek_v2.py)."""
    if not architecture_of(config).experts or config.get("n_routed_experts") is None:
        return False
    first = optional_number(config, "first_k_dense_replace", 0)
    return layer >= first and layer % (optional_number(config, "moe_layer_freq", 1) or 1) == 0


def expected_tensors(config: Mapping[str, Any]) -> dict[str, Shape]:
    """Every tensor a complete checkpoint holds, by Hugging Face name, with its shape.

    In order of use: embedding, layers, final norm, head, then the multi-token-prediction
    layers. Raises UsageError for an unknown architecture and CheckFailedError for a
    configuration that lacks a size.
    """
    hidden, vocabulary = number(config, "hidden_size"), number(config, "vocab_size")
    tensors: dict[str, Shape] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for layer in range(number(config, "num_hidden_layers")):
        tensors.update(_decoder_layer(config, layer))
    tensors["model.norm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings"):
        tensors["lm_head.weight"] = (vocabulary, hidden)
    if architecture_of(config).attention == "mla":
        for layer in mtp_layers(config):
            tensors.update(_decoder_layer(config, layer))
            tensors.update(_mtp_extras(config, layer))
    return tensors


def _decoder_layer(config: Mapping[str, Any], layer: int) -> Iterator[tuple[str, Shape]]:
    hidden = number(config, "hidden_size")
    prefix = f"model.layers.{layer}."
    if architecture_of(config).attention == "mla":
        yield from _latent_attention(config, prefix + "self_attn.")
    else:
        yield from _plain_attention(config, prefix + "self_attn.")
    yield prefix + "input_layernorm.weight", (hidden,)
    yield prefix + "post_attention_layernorm.weight", (hidden,)
    if has_experts(config, layer):
        yield from _experts(config, prefix + "mlp.")
    else:
        biased = bool(config.get("mlp_bias"))
        yield from _mlp(prefix + "mlp.", hidden, number(config, "intermediate_size"), biased)


def _plain_attention(config: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Shape]]:
    hidden, size = number(config, "hidden_size"), head_size(config)
    query, key_value = number(config, "num_attention_heads") * size, key_value_heads(config) * size
    every_bias = bool(config.get("attention_bias")) and not architecture_of(config).experts
    for name, rows in (("q_proj", query), ("k_proj", key_value), ("v_proj", key_value)):
        yield f"{prefix}{name}.weight", (rows, hidden)
        if every_bias or architecture_of(config).qkv_bias:
            yield f"{prefix}{name}.bias", (rows,)
    yield prefix + "o_proj.weight", (hidden, query)
    if every_bias and not architecture_of(config).qkv_bias:
        yield prefix + "o_proj.bias", (hidden,)


def _latent_attention(config: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Shape]]:
    hidden, heads = number(config, "hidden_size"), number(config, "num_attention_heads")
    latent, rope = number(config, "kv_lora_rank"), number(config, "qk_rope_head_dim")
    plain, value = number(config, "qk_nope_head_dim"), number(config, "v_head_dim")
    query = heads * (plain + rope)
    if config.get("q_lora_rank") is None:
        yield prefix + "q_proj.weight", (query, hidden)
    else:
        rank = number(config, "q_lora_rank")
        yield prefix + "q_a_proj.weight", (rank, hidden)
        yield prefix + "q_a_layernorm.weight", (rank,)
        yield prefix + "q_b_proj.weight", (query, rank)
    yield prefix + "kv_a_proj_with_mqa.weight", (latent + rope, hidden)
    yield prefix + "kv_a_layernorm.weight", (latent,)
    yield prefix + "kv_b_proj.weight", (heads * (plain + value), latent)
    yield prefix + "o_proj.weight", (hidden, heads * value)
    if architecture_of(config).indexer:
        yield from _indexer(config, prefix + "indexer.")


def _indexer(config: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Shape]]:
    hidden, rank = number(config, "hidden_size"), number(config, "q_lora_rank")
    heads, size = number(config, "index_n_heads"), number(config, "index_head_dim")
    yield prefix + "wq_b.weight", (heads * size, rank)
    yield prefix + "wk.weight", (size, hidden)
    yield prefix + "k_norm.weight", (size,)
    yield prefix + "k_norm.bias", (size,)
    yield prefix + "weights_proj.weight", (heads, hidden)


def _mlp(
    prefix: str, hidden: int, intermediate: int, biased: bool = False
) -> Iterator[tuple[str, Shape]]:
    for name, rows, columns in (
        ("gate_proj", intermediate, hidden),
        ("up_proj", intermediate, hidden),
        ("down_proj", hidden, intermediate),
    ):
        yield f"{prefix}{name}.weight", (rows, columns)
        if biased:
            yield f"{prefix}{name}.bias", (rows,)


def _experts(config: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Shape]]:
    hidden, experts = number(config, "hidden_size"), number(config, "n_routed_experts")
    intermediate = number(config, "moe_intermediate_size")
    yield prefix + "gate.weight", (experts, hidden)
    if config.get("topk_method") == "noaux_tc":
        yield prefix + "gate.e_score_correction_bias", (experts,)
    for expert in range(experts):
        yield from _mlp(f"{prefix}experts.{expert}.", hidden, intermediate)
    if config.get("n_shared_experts"):
        shared = intermediate * number(config, "n_shared_experts")
        yield from _mlp(prefix + "shared_experts.", hidden, shared)


def _mtp_extras(config: Mapping[str, Any], layer: int) -> Iterator[tuple[str, Shape]]:
    hidden, vocabulary = number(config, "hidden_size"), number(config, "vocab_size")
    prefix = f"model.layers.{layer}."
    yield prefix + "embed_tokens.weight", (vocabulary, hidden)
    yield prefix + "enorm.weight", (hidden,)
    yield prefix + "hnorm.weight", (hidden,)
    yield prefix + "eh_proj.weight", (hidden, 2 * hidden)
    yield prefix + "shared_head.norm.weight", (hidden,)
    yield prefix + "shared_head.head.weight", (vocabulary, hidden)
