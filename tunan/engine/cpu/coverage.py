"""What the fused forward covers: the first thing about a model that it does not, in words."""

from collections.abc import Iterator
from typing import Any

from tunan.engine.cpu import configured
from tunan.engine.cpu.attention import CpuAttentionImpl
from tunan.engine.cpu.latent_weights import is_scaled
from tunan.engine.cpu.packed_experts import mixture_of
from tunan.engine.cpu.packed_linear import packed_of

SCORES = ("softmax", "sigmoid")
LATENT_LINEAR_LAYERS = (
    "self_attn.q_b_proj",
    "self_attn.q_proj",
    "self_attn.o_proj",
    "mlp.gate_up_proj",
    "mlp.down_proj",
    "mlp.shared_experts.gate_up_proj",
    "mlp.shared_experts.down_proj",
)
LINEAR_LAYERS = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")


def refusal(model: Any, vllm_config: Any) -> str | None:
    """Why the decoder layers of a loaded Llama or Qwen2 cannot run fused; None if they can."""
    return next(_refusals(model, vllm_config), None)


def _refusals(model: Any, config: Any) -> Iterator[str]:
    yield from configured.refusals(config)
    for layer in model.model.layers:
        yield from _of_layer(layer)


def latent_refusal(model: Any, vllm_config: Any) -> str | None:
    """Why the decoder layers of a loaded DeepSeek-V2 or V3 cannot run fused; None if they can."""
    return next(_latent_refusals(model, vllm_config), None)


def _latent_refusals(model: Any, config: Any) -> Iterator[str]:
    yield from configured.refusals(config)
    if not config.model_config.use_mla:
        yield "latent attention is switched off"
    if model.model.is_v32:
        yield "attention is sparse"
    if getattr(model.config, "llama_4_scaling", None) is not None:
        yield "queries are scaled by their positions"
    if getattr(config.model_config, "enable_return_routed_experts", False):
        yield "routed experts are to be returned"
    for layer in model.model.layers:
        yield from _of_latent_layer(layer, config.model_config.dtype)


def _of_latent_layer(layer: Any, dtype: Any) -> Iterator[str]:
    # To the latents, quantised or not, and the router.
    for name in ("self_attn.fused_qkv_a_proj", "self_attn.kv_a_proj_with_mqa", "mlp.gate"):
        yield from _of_bias(layer, name)
        yield from _of_plain(layer, name, dtype)
    for name in LATENT_LINEAR_LAYERS:
        yield from _of_linear(layer, name)
    if layer.use_sequence_parallel_moe:
        yield "tokens are shared out among ranks"
    if hasattr(layer.mlp, "experts"):
        yield from _of_experts(layer.mlp.experts)
    rotary = layer.self_attn.rotary_emb
    if not is_scaled(rotary):
        yield from _of_rotary(rotary)


def _of_experts(runner: Any) -> Iterator[str]:
    if mixture_of(runner.routed_experts) is None:
        yield "experts are neither W8A8 nor W4A8 of ours"
    router = runner.router
    if not getattr(router, "use_grouped_topk", False) or router.scoring_func not in SCORES:
        yield f"{type(router).__name__} routes otherwise than DeepSeek's"


def _of_plain(layer: Any, name: str, dtype: Any) -> Iterator[str]:
    found = _found(layer, name)
    if found is None or packed_of(found) is not None:
        return
    weight = getattr(found, "weight", None)
    if weight is None or weight.dim() != 2 or weight.dtype != dtype:
        yield f"{name} has no weight of {dtype}"


def _of_linear(layer: Any, name: str) -> Iterator[str]:
    found = _found(layer, name)
    if found is not None and packed_of(found) is None:
        yield f"{name} is neither W8A8 nor W4A8"
    yield from _of_bias(layer, name)


def _of_bias(layer: Any, name: str) -> Iterator[str]:
    if getattr(_found(layer, name), "bias", None) is not None:
        yield f"{name} has a bias"


def _found(layer: Any, name: str) -> Any:
    """That part of a decoder layer, None if it has none: not every query has a latent."""
    return dict(layer.named_modules()).get(name)


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
