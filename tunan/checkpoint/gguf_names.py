"""Which tensor of a GGUF file each Hugging Face tensor comes from, and in which order of rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunan.checkpoint.gguf_header import GGUFTensor
from tunan.errors import CheckFailedError

# Not a parameter: the per-frequency factors that llama.cpp derives from a rope scaling.
ROPE_FACTORS = "rope_freqs.weight"

OUTER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
IN_DEEPSEEK_LAYER = IN_LAYER | {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
STACKED_EXPERTS = {
    "ffn_gate_exps": "gate_proj",
    "ffn_up_exps": "up_proj",
    "ffn_down_exps": "down_proj",
}
LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias)")


@dataclass(frozen=True)
class Placement:
    """Where a Hugging Face tensor of `shape` lies: in `tensor`, from row `first` on.

    `head` is the head dimension where llama.cpp reordered the rows within each head, else 0.
    """

    tensor: str
    shape: tuple[int, ...]
    first: int = 0
    head: int = 0


@dataclass(frozen=True)
class JoinedHeads:
    """`kv_b_proj`, which llama.cpp splits into keys and values and whose keys it transposes.

    Each head of `tensor` is [latent, key rows], each of `values` [value rows, latent]; `shape` is
    [heads * (key rows + value rows), latent], in each head first the keys, then the values.
    """

    tensor: str
    values: str
    shape: tuple[int, ...]
    key_rows: int
    value_rows: int


def placements(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, GGUFTensor]
) -> dict[str, Placement | JoinedHeads]:
    """Hugging Face name -> placement, in file order.

    Raises `CheckFailedError` for a tensor without a Hugging Face name, as leaving it out
    would change the model, and for one whose shape cannot be what its name says.
    """
    place = _in_llama if config["model_type"] == "llama" else _in_order
    if config["model_type"].startswith("deepseek"):
        place = _in_deepseek
    placed: dict[str, Placement | JoinedHeads] = {}
    for name in tensors:
        placed.update(place(path, config, tensors, name))
    return placed


Placed = Iterator[tuple[str, Placement | JoinedHeads]]


def _in_order(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, GGUFTensor], name: str
) -> Placed:
    yield hugging_face_name(path, name, IN_LAYER), Placement(name, tensors[name].shape)


def _in_llama(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, GGUFTensor], name: str
) -> Placed:
    shape = tensors[name].shape
    head = config["head_dim"] if re.search(r"\.attn_[qk]\.", name) else 0
    if head and (len(shape) not in (1, 2) or shape[0] % head):
        raise _misshapen(path, tensors[name], f"heads of {head}")
    yield hugging_face_name(path, name, IN_LAYER), Placement(name, shape, head=head)


def _in_deepseek(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, GGUFTensor], name: str
) -> Placed:
    match = LAYER_TENSOR.fullmatch(name)
    part, shape = match[2] if match else "", tensors[name].shape
    layer = f"model.layers.{int(match[1])}" if match else ""
    if part in STACKED_EXPERTS:
        yield from _experts(path, config, tensors[name], f"{layer}.mlp.experts")
    elif part == "exp_probs_b":
        yield f"{layer}.mlp.gate.e_score_correction_bias", Placement(name, shape)
    elif part == "attn_k_b":
        yield f"{layer}.self_attn.kv_b_proj.weight", _joined(path, config, tensors, name)
    elif part != "attn_v_b":  # which the line above has placed
        yield hugging_face_name(path, name, IN_DEEPSEEK_LAYER), Placement(name, shape)


def _experts(path: Path, config: Mapping[str, Any], tensor: GGUFTensor, prefix: str) -> Placed:
    count = config["n_routed_experts"]
    if len(tensor.shape) != 3 or tensor.shape[0] != count:
        raise _misshapen(path, tensor, f"{count} experts")
    projection = STACKED_EXPERTS[tensor.name.split(".")[2]]
    for expert in range(count):
        first = expert * tensor.shape[1]
        yield (
            f"{prefix}.{expert}.{projection}.weight",
            Placement(tensor.name, tensor.shape[1:], first=first),
        )


def _joined(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, GGUFTensor], name: str
) -> JoinedHeads:
    values = name.replace("attn_k_b", "attn_v_b")
    heads, latent = config["num_attention_heads"], config["kv_lora_rank"]
    keys_per_head, values_per_head = config["qk_nope_head_dim"], config["v_head_dim"]
    if values not in tensors:
        raise CheckFailedError(f"{path}: tensor '{values}' is missing")
    if tensors[name].shape != (heads, latent, keys_per_head):
        raise _misshapen(path, tensors[name], f"{heads} heads [{latent}, {keys_per_head}]")
    if tensors[values].shape != (heads, values_per_head, latent):
        raise _misshapen(path, tensors[values], f"{heads} heads [{values_per_head}, {latent}]")
    rows = heads * (keys_per_head + values_per_head)
    return JoinedHeads(name, values, (rows, latent), keys_per_head, values_per_head)


def hugging_face_name(path: Path, name: str, in_layer: Mapping[str, str]) -> str:
    """`blk.0.attn_q.weight` -> `model.layers.0.self_attn.q_proj.weight`."""
    module, _, leaf = name.rpartition(".")
    if module in OUTER and leaf in ("weight", "bias"):
        return f"{OUTER[module]}.{leaf}"
    match = LAYER_TENSOR.fullmatch(name)
    if match and match[2] in in_layer:
        return f"model.layers.{int(match[1])}.{in_layer[match[2]]}.{match[3]}"
    raise CheckFailedError(f"{path}: tensor '{name}' has no place in the Hugging Face model")


def _misshapen(path: Path, tensor: GGUFTensor, expected: str) -> CheckFailedError:
    return CheckFailedError(
        f"{path}: tensor '{tensor.name}' of shape {list(tensor.shape)} is not made of {expected}"
    )
