"""What our kernels need of a decoder layer of DeepSeek-V2 or V3 that vLLM has loaded."""

from typing import Any

import torch

from tunan.engine.cpu.packed_experts import PackedMixture, mixture_of
from tunan.engine.cpu.packed_linear import packed_of
from tunan.kernels.latent import LatentLayer, Mixture
from tunan.kernels.linear import PackedLinear
from tunan.kernels.router import Routing


def is_scaled(rotary: Any) -> bool:
    """Whether a rotary embedding is DeepSeek's, which vLLM 0.32 has no kernel for on a CPU: it runs
    three operators there, and so rounds three times."""
    from vllm.model_executor.layers.rotary_embedding.deepseek_scaling_rope import (
        DeepseekScalingRotaryEmbedding,
    )

    return type(rotary) is DeepseekScalingRotaryEmbedding


def angles(layer: Any, dtype: torch.dtype) -> torch.Tensor:
    """The cosines and sines of a layer's rotation, [max_position, rope]."""
    table: torch.Tensor = layer.self_attn.rotary_emb.cos_sin_cache.to(dtype).contiguous()
    return table


def latent_weights(layer: Any, cos_sin: torch.Tensor) -> LatentLayer:
    """The layer as the kernels take it; `cos_sin` is what `angles` made, once for all layers."""
    outer, mlp = layer.self_attn.mla_attn, layer.mlp
    mixed = hasattr(mlp, "experts")
    dense = mlp.shared_experts if mixed else mlp
    ranked = bool(outer.q_lora_rank)
    to_latent, to_value = _latent_space(outer)
    return LatentLayer(
        input_norm=layer.input_layernorm.weight.data,
        post_norm=layer.post_attention_layernorm.weight.data,
        query_norm=outer.q_a_layernorm.weight.data if ranked else None,
        latent_norm=outer.kv_a_layernorm.weight.data,
        down=_packed_or_plain(outer.fused_qkv_a_proj if ranked else outer.kv_a_proj_with_mqa),
        query=_packed(outer.q_b_proj if ranked else outer.q_proj),
        to_latent=to_latent,
        to_value=to_value,
        output=_packed(outer.o_proj),
        cos_sin=cos_sin,
        epsilon=layer.input_layernorm.variance_epsilon,
        latent_epsilon=outer.kv_a_layernorm.variance_epsilon,
        scale=outer.mla_attn.impl.scale,
        gate_up=None if dense is None else _packed(dense.gate_up_proj),
        down_mlp=None if dense is None else _packed(dense.down_proj),
        mixture=_mixture(mlp) if mixed else None,
        neox=bool(layer.self_attn.rotary_emb.is_neox_style),
        in_steps=is_scaled(layer.self_attn.rotary_emb),
    )


def _latent_space(outer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """[heads, nope, latent] and [heads, value, latent], each row in one piece."""
    mla = outer.mla_attn
    if getattr(mla, "W_UK_T", None) is None:
        # vLLM's kernel for AMX has packed them, and attends itself: only sizes are asked for.
        row = outer.kv_a_layernorm.weight.data
        return (
            row.expand(outer.num_heads, outer.qk_nope_head_dim, -1),
            row.expand(outer.num_heads, outer.v_head_dim, -1),
        )
    return _in_rows(mla.W_UK_T), _in_rows(mla.W_UV.transpose(1, 2))


def _in_rows(weight: torch.Tensor) -> torch.Tensor:
    weight = weight.detach()
    return weight if weight.stride(-1) == 1 else weight.contiguous()


def _mixture(module: Any) -> Mixture:
    runner = module.experts
    router, experts = runner.router, runner.routed_experts
    packed: PackedMixture | None = mixture_of(experts)
    if packed is None:
        raise ValueError("coverage.latent_refusal() lets only packed experts through")
    bias, placed = router.e_score_correction_bias, experts.expert_map
    routing = Routing(
        top_k=router.top_k,
        groups=router.num_expert_group or 1,
        kept_groups=router.topk_group or 1,
        sigmoid=router.scoring_func == "sigmoid",
        renormalise=bool(router.renormalize),
        scale=float(router.routed_scaling_factor),
        bias=None if bias is None else bias.detach().float().contiguous(),
        placed=None if placed is None else placed.to(torch.int32).contiguous(),
    )
    return Mixture(
        router=module.gate.weight.data,
        routing=routing,
        gate_up=packed.gate_up,
        down=packed.down,
        scale=float(runner.routed_scaling_factor),
    )


def _packed_or_plain(module: Any) -> PackedLinear | torch.Tensor:
    found = packed_of(module)
    if found is not None:
        return found.packed
    weight: torch.Tensor = module.weight.data
    return weight


def _packed(module: Any) -> PackedLinear:
    found = packed_of(module)
    if found is None:
        raise ValueError("coverage.latent_refusal() lets only packed layers through")
    return found.packed
