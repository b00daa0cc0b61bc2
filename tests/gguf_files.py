"""Writes a Hugging Face model of the tests as a GGUF file, the way llama.cpp's converter does.

Independent of the reader under test: names, metadata and the reordering of q and k are
written down here once more.
"""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
F32 = gguf.GGMLQuantizationType.F32


def write_gguf(
    path: Path,
    model: Path,
    kind: gguf.GGMLQuantizationType = F32,
    metadata: dict[str, Any] | None = None,
    factors: np.ndarray | None = None,
) -> Path:
    """Writes the model in directory `model`; matrices become `kind`.

    `metadata` overrides or adds string and float entries; None removes one. `factors` become
    the tensor `rope_freqs.weight`. Returns `path`.
    """
    config = json.loads((model / "config.json").read_text())
    deepseek = config["model_type"].startswith("deepseek")
    writer = gguf.GGUFWriter(path, "deepseek2" if deepseek else config["model_type"])
    entries = metadata or {}
    _write_config(writer, config)
    _write_vocabulary(writer, model, entries)
    for key, value in entries.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))
    tensors = load_file(model / "model.safetensors")
    if deepseek:
        _write_deepseek_config(writer, config)
        tensors = _write_experts_and_heads(writer, config, tensors)
    for name, tensor in tensors.items():
        _write_tensor(writer, config, name, tensor, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_config(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])


def _write_deepseek_config(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    rotary = config["qk_rope_head_dim"]
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    if config["q_lora_rank"] is not None:
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(config["kv_lora_rank"])
    writer.add_key_length(config["kv_lora_rank"] + rotary)
    writer.add_value_length(config["kv_lora_rank"])
    writer.add_key_length_mla(config["qk_nope_head_dim"] + rotary)
    writer.add_value_length_mla(config["v_head_dim"])
    writer.add_rope_dimension_count(rotary)
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    gating = gguf.ExpertGatingFuncType[config["scoring_func"].upper()]
    writer.add_expert_gating_func(gating)
    writer.add_expert_group_count(config["n_group"])
    writer.add_expert_group_used_count(config["topk_group"])
    scaling = config["rope_scaling"]
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(scaling["factor"])
    writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
    writer.add_rope_scaling_yarn_log_mul(0.1 * scaling["mscale_all_dim"])


def _write_experts_and_heads(
    writer: gguf.GGUFWriter, config: dict[str, Any], tensors: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Writes what llama.cpp stacks or splits and returns the rest."""
    rest = dict(tensors)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        kv = rest.pop(f"{prefix}.self_attn.kv_b_proj.weight").float()
        heads = kv.reshape(config["num_attention_heads"], -1, kv.shape[1])
        keys, values = (
            heads[:, : config["qk_nope_head_dim"]],
            heads[:, config["qk_nope_head_dim"] :],
        )
        writer.add_tensor(f"blk.{layer}.attn_k_b.weight", keys.transpose(1, 2).contiguous().numpy())
        writer.add_tensor(f"blk.{layer}.attn_v_b.weight", values.contiguous().numpy())
        bias = rest.pop(f"{prefix}.mlp.gate.e_score_correction_bias", None)
        if bias is not None:
            writer.add_tensor(f"blk.{layer}.exp_probs_b.bias", bias.numpy())
        for part in ("gate", "up", "down"):
            names = [
                f"{prefix}.mlp.experts.{expert}.{part}_proj.weight"
                for expert in range(config["n_routed_experts"])
            ]
            if names[0] in rest:
                stacked = torch.stack([rest.pop(name).float() for name in names])
                writer.add_tensor(f"blk.{layer}.ffn_{part}_exps.weight", stacked.numpy())
    return rest


def _write_vocabulary(writer: gguf.GGUFWriter, model: Path, entries: dict[str, Any]) -> None:
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    ids = tokenizer["model"]["vocab"]
    special = {token["content"] for token in tokenizer["added_tokens"]}
    tokens = sorted(ids, key=ids.__getitem__)
    merges = [" ".join(pair) for pair in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model(entries.pop("tokenizer.ggml.model", "gpt2"))
    writer.add_tokenizer_pre(entries.pop("tokenizer.ggml.pre", "gpt-2"))
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    writer.add_chat_template(settings["chat_template"])


def _write_tensor(
    writer: gguf.GGUFWriter,
    config: dict[str, Any],
    name: str,
    tensor: torch.Tensor,
    kind: gguf.GGMLQuantizationType,
) -> None:
    module, _, leaf = name.rpartition(".")
    parts = module.split(".")
    prefix = ""
    if parts[:2] == ["model", "layers"]:
        prefix, module = f"blk.{parts[2]}.", ".".join(parts[3:])
    values = tensor.float().numpy()
    heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
    if config["model_type"] == "llama" and NAMES[module] in heads:
        values = interleave(values, config[heads[NAMES[module]]])
    of_kind = kind if values.ndim == 2 else F32
    writer.add_tensor(
        f"{prefix}{NAMES[module]}.{leaf}",
        gguf.quantize(values, of_kind) if of_kind != F32 else values,
        raw_dtype=of_kind,
    )


def interleave(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from (first half, second half) to pairs, for llama.cpp's rotary."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
