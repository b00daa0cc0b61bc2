"""What the fused forward covers: the first thing about a model that it does not, in words."""

from collections.abc import Iterator
from typing import Any

from tunan.engine.cpu import configured
from tunan.engine.cpu.attention import CpuAttentionImpl
from tunan.engine.cpu.packed_linear import packed_of

LINEAR_LAYERS = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")


def refusal(model: Any, vllm_config: Any) -> str | None:
    """Why the decoder layers of a loaded Llama or Qwen2 cannot run fused; None if they can."""
    return next(_refusals(model, vllm_config), None)


def _refusals(model: Any, config: Any) -> Iterator[str]:
    yield from configured.refusals(config)
    for layer in model.model.layers:
        yield from _of_layer(layer)


def _of_layer(layer: Any) -> Iterator[str]:
    attention = layer.self_attn
    for name in LINEAR_LAYERS:
        if packed_of(layer.get_submodule(name)) is None:
            yield f"{name} is neither W8A8 nor W4A8"
    if any(getattr(layer.get_submodule(n), "bias", None) is not None for n in LINEAR_LAYERS[2:]):
        yield "the MLP has biases"
    if getattr(attention, "qk_norm", False):
        yield "queries and keys are normalised"
    yield from _of_rotary(attention.rotary_emb)
    implementation = attention.attn.impl
    if not isinstance(implementation, CpuAttentionImpl):
        yield "attention is vLLM's own"
    elif implementation.stock_because is not None:
        yield f"attention is vLLM's own: {implementation.stock_because}"
    elif implementation.alibi_slopes is not None or implementation.logits_soft_cap:
        yield "attention has slopes or a soft cap"
    if attention.attn.kv_sharing_target_layer_name is not None:
        yield "layers share a KV cache"


def _of_rotary(rotary: Any) -> Iterator[str]:
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    plain = isinstance(rotary, RotaryEmbedding)
    if not plain or type(rotary).forward_cpu is not RotaryEmbedding.forward_cpu:
        yield f"{type(rotary).__name__} is not a plain rotary embedding"
