"""Small random models in Hugging Face layout, of every family Tunan serves.

Each writer makes a directory with `config.json`, `model-*.safetensors` (bf16, with an index
when there is more than one file), a byte-level BPE tokenizer and a chat template; the
weights follow from `seed` alone. Every branch contributes to the residual stream with the
embedding's own size, so that a wrong tensor anywhere changes the tokens.

The shapes are the smallest that real engines take: the CPU's attention kernels exist for
heads of 32, 64, ... and its MLA kernel only for kv_lora_rank 512 with a rotary part of 64.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.tokenizer import VOCABULARY_SIZE, write_tokenizer

Tensors = Iterator[tuple[str, torch.Tensor]]

FP8_BLOCK = 128

_COMMON: dict[str, Any] = {
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "hidden_act": "silu",
    "hidden_size": 256,
    "initializer_range": 0.02,
    "intermediate_size": 384,
    "max_position_embeddings": 2048,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.33.1",
    "use_cache": True,
    "vocab_size": VOCABULARY_SIZE,
}

_MLA_AND_EXPERTS: dict[str, Any] = _COMMON | {
    "attention_bias": False,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "max_position_embeddings": 4096,
    "moe_intermediate_size": 128,
    "moe_layer_freq": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "num_key_value_heads": 4,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 64,
}


def write_llama(directory: Path, *, seed: int = 0, shards: int = 1, **overrides: Any) -> Path:
    """DeepSeek-LLM's family: LlamaForCausalLM with grouped-query attention. Returns `directory`."""
    config = _COMMON | {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "mlp_bias": False,
        "model_type": "llama",
        "num_key_value_heads": 2,
    }
    return _write(directory, config | overrides, seed=seed, shards=shards)


def write_decided_llama(directory: Path, *, seed: int = 0) -> Path:
    """A Llama that is never in two minds: the last token all but decides the next one.

    The best logit leads by far more than any rounding, so that however an engine batches, reads a
    prompt or adds up, greedy tokens are the same. Returns `directory`.
    """
    write_llama(directory, seed=seed)
    file = directory / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.mul_(0.1)
    embeddings = tensors["model.embed_tokens.weight"]
    # One cycle through the whole vocabulary: each token asks for the one after it.
    cycle = torch.randperm(len(embeddings), generator=torch.Generator().manual_seed(seed))
    tensors["lm_head.weight"][cycle.roll(-1)] = embeddings[cycle] / embeddings.shape[1] ** 0.5
    save_file(tensors, file, metadata={"format": "pt"})
    return directory


def write_qwen2(directory: Path, *, seed: int = 0, shards: int = 1, **overrides: Any) -> Path:
    """DeepSeek-R1-Distill-Qwen's family: biases on q, k and v. Returns `directory`."""
    config = _COMMON | {
        "architectures": ["Qwen2ForCausalLM"],
        "max_window_layers": 3,
        "model_type": "qwen2",
        "num_key_value_heads": 2,
        "sliding_window": None,
        "use_sliding_window": False,
    }
    return _write(directory, config | overrides, seed=seed, shards=shards)


def write_deepseek_v2_lite(
    directory: Path, *, seed: int = 0, shards: int = 1, **overrides: Any
) -> Path:
    """DeepSeek-V2-Lite: MLA without a query latent, greedy softmax routing. Returns `directory`."""
    config = _MLA_AND_EXPERTS | {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "n_group": 1,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "q_lora_rank": None,
        "rope_scaling": _yarn(0.707),
        "routed_scaling_factor": 1.0,
        "scoring_func": "softmax",
        "topk_group": 1,
        "topk_method": "greedy",
    }
    return _write(directory, config | overrides, seed=seed, shards=shards)


def write_deepseek_v3(
    directory: Path,
    *,
    seed: int = 0,
    shards: int = 1,
    fp8: bool = False,
    mtp: bool = False,
    **overrides: Any,
) -> Path:
    """DeepSeek-V3/R1: query latent, grouped sigmoid routing with a selection bias.

    `fp8` stores the linear weights as the release does (e4m3 with one float32 factor for
    each 128x128 block in `weight_scale_inv`); `mtp` adds the multi-token-prediction layer,
    which the release stores as one more layer. Returns `directory`.
    """
    config = _MLA_AND_EXPERTS | {
        "architectures": ["DeepseekV3ForCausalLM"],
        "ep_size": 1,
        "model_type": "deepseek_v3",
        "n_group": 4,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_nextn_predict_layers": 1 if mtp else 0,
        "q_lora_rank": 192,
        "rope_scaling": _yarn(1.0),
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "topk_group": 2,
        "topk_method": "noaux_tc",
    }
    if fp8:
        config["quantization_config"] = {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "weight_block_size": [FP8_BLOCK, FP8_BLOCK],
        }
    return _write(directory, config | overrides, seed=seed, shards=shards)


def quantise_to_fp8_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`weight` [rows, columns] as e4m3 of the same shape and float32 factors, one a 128x128 block.

    As in the DeepSeek-V3 release: value = e4m3 * factor, blocks at the edges may be cut.
    """
    rows, columns = weight.shape
    padded = torch.zeros(-(-rows // FP8_BLOCK) * FP8_BLOCK, -(-columns // FP8_BLOCK) * FP8_BLOCK)
    padded[:rows, :columns] = weight.float()
    blocks = padded.view(-1, FP8_BLOCK, padded.shape[1] // FP8_BLOCK, FP8_BLOCK)
    largest = torch.finfo(torch.float8_e4m3fn).max
    factors = blocks.abs().amax(dim=(1, 3)).clamp(min=1e-12) / largest
    quantised = (blocks / factors[:, None, :, None]).to(torch.float8_e4m3fn)
    quantised = quantised.view(torch.uint8).flatten(2, 3).flatten(0, 1)[:rows, :columns]
    return quantised.contiguous().view(torch.float8_e4m3fn), factors.contiguous()


def _yarn(mscale: float) -> dict[str, Any]:
    return {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 4,
        "mscale": mscale,
        "mscale_all_dim": mscale,
        "original_max_position_embeddings": 1024,
        "type": "yarn",
    }


def _write(directory: Path, config: dict[str, Any], *, seed: int, shards: int) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    write_tokenizer(directory, config["vocab_size"])
    generator = torch.Generator().manual_seed(seed)
    tensors = dict(_tensors(config, generator))
    if "quantization_config" in config:
        tensors = dict(_with_fp8(tensors))
    _write_shards(directory, tensors, shards)
    return directory


def _write_shards(directory: Path, tensors: dict[str, torch.Tensor], shards: int) -> None:
    if shards == 1:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for number in range(shards):
        part = names[number * len(names) // shards : (number + 1) * len(names) // shards]
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        save_file({n: tensors[n] for n in part}, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))


def _tensors(config: dict[str, Any], generator: torch.Generator) -> Tensors:
    vocabulary, hidden = config["vocab_size"], config["hidden_size"]
    yield "model.embed_tokens.weight", _normal(generator, 1.0, vocabulary, hidden)
    for layer in range(config["num_hidden_layers"]):
        yield from _layer(config, generator, layer)
    yield "model.norm.weight", _norm(generator, hidden)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", _matrix(generator, vocabulary, hidden)
    for extra in range(config.get("num_nextn_predict_layers", 0)):
        yield from _prediction_layer(config, generator, config["num_hidden_layers"] + extra)


def _layer(config: dict[str, Any], generator: torch.Generator, layer: int) -> Tensors:
    prefix, hidden = f"model.layers.{layer}", config["hidden_size"]
    attention = _mla if "kv_lora_rank" in config else _grouped_query_attention
    yield from attention(config, generator, f"{prefix}.self_attn")
    yield f"{prefix}.input_layernorm.weight", _norm(generator, hidden)
    yield f"{prefix}.post_attention_layernorm.weight", _norm(generator, hidden)
    if "n_routed_experts" in config and layer >= config["first_k_dense_replace"]:
        yield from _experts(config, generator, f"{prefix}.mlp")
    else:
        yield from _mlp(generator, f"{prefix}.mlp", hidden, config["intermediate_size"])


def _grouped_query_attention(
    config: dict[str, Any], generator: torch.Generator, prefix: str
) -> Tensors:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    size = config.get("head_dim") or hidden // heads
    biased = config["model_type"] == "qwen2"
    rows = {"q_proj": heads, "k_proj": config["num_key_value_heads"]}
    rows["v_proj"] = config["num_key_value_heads"]
    for name, count in rows.items():
        yield f"{prefix}.{name}.weight", _matrix(generator, count * size, hidden)
        if biased:
            yield f"{prefix}.{name}.bias", _normal(generator, 0.5, count * size)
    yield f"{prefix}.o_proj.weight", _matrix(generator, hidden, heads * size, gain=3.0)


def _mla(config: dict[str, Any], generator: torch.Generator, prefix: str) -> Tensors:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    latent, rotary = config["kv_lora_rank"], config["qk_rope_head_dim"]
    query = heads * (config["qk_nope_head_dim"] + rotary)
    value = heads * config["v_head_dim"]
    if config["q_lora_rank"] is None:
        yield f"{prefix}.q_proj.weight", _matrix(generator, query, hidden)
    else:
        rank = config["q_lora_rank"]
        yield f"{prefix}.q_a_proj.weight", _matrix(generator, rank, hidden)
        yield f"{prefix}.q_a_layernorm.weight", _norm(generator, rank)
        yield f"{prefix}.q_b_proj.weight", _matrix(generator, query, rank)
    yield f"{prefix}.kv_a_proj_with_mqa.weight", _matrix(generator, latent + rotary, hidden)
    yield f"{prefix}.kv_a_layernorm.weight", _norm(generator, latent)
    expanded = heads * config["qk_nope_head_dim"] + value
    yield f"{prefix}.kv_b_proj.weight", _matrix(generator, expanded, latent)
    yield f"{prefix}.o_proj.weight", _matrix(generator, hidden, value, gain=3.0)


def _mlp(generator: torch.Generator, prefix: str, hidden: int, inner: int) -> Tensors:
    yield f"{prefix}.gate_proj.weight", _matrix(generator, inner, hidden)
    yield f"{prefix}.up_proj.weight", _matrix(generator, inner, hidden)
    yield f"{prefix}.down_proj.weight", _matrix(generator, hidden, inner, gain=2.0)


def _experts(config: dict[str, Any], generator: torch.Generator, prefix: str) -> Tensors:
    hidden, inner = config["hidden_size"], config["moe_intermediate_size"]
    routed = config["n_routed_experts"]
    yield f"{prefix}.gate.weight", _matrix(generator, routed, hidden, gain=1.5)
    if config["topk_method"] == "noaux_tc":
        bias = torch.randn(routed, generator=generator) * 0.1
        yield f"{prefix}.gate.e_score_correction_bias", bias
    for expert in range(routed):
        yield from _mlp(generator, f"{prefix}.experts.{expert}", hidden, inner)
    shared = inner * config["n_shared_experts"]
    yield from _mlp(generator, f"{prefix}.shared_experts", hidden, shared)


def _prediction_layer(config: dict[str, Any], generator: torch.Generator, layer: int) -> Tensors:
    prefix, hidden = f"model.layers.{layer}", config["hidden_size"]
    vocabulary = config["vocab_size"]
    yield f"{prefix}.embed_tokens.weight", _normal(generator, 1.0, vocabulary, hidden)
    yield f"{prefix}.enorm.weight", _norm(generator, hidden)
    yield f"{prefix}.hnorm.weight", _norm(generator, hidden)
    yield f"{prefix}.eh_proj.weight", _matrix(generator, hidden, 2 * hidden)
    yield from _layer(config, generator, layer)
    yield f"{prefix}.shared_head.norm.weight", _norm(generator, hidden)
    yield f"{prefix}.shared_head.head.weight", _matrix(generator, vocabulary, hidden)


# Kept in bf16 or float32 by the release.
_NEVER_FP8 = ("embed_tokens", "lm_head", "norm", "mlp.gate.", "eh_proj", "shared_head")


def _with_fp8(tensors: dict[str, torch.Tensor]) -> Tensors:
    for name, tensor in tensors.items():
        if tensor.dim() != 2 or any(part in name for part in _NEVER_FP8):
            yield name, tensor
            continue
        quantised, factors = quantise_to_fp8_blocks(tensor)
        yield name, quantised
        yield f"{name}_scale_inv", factors


def _matrix(generator: torch.Generator, rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
    return _normal(generator, gain * columns**-0.5, rows, columns)


def _normal(generator: torch.Generator, deviation: float, *shape: int) -> torch.Tensor:
    return (torch.randn(shape, generator=generator) * deviation).to(torch.bfloat16)


def _norm(generator: torch.Generator, size: int) -> torch.Tensor:
    return (1 + 0.1 * torch.randn(size, generator=generator)).to(torch.bfloat16)
