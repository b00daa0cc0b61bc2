"""The decoder layers of DeepSeek-V2 and V3 as a dozen calls each into the kernels.

What vLLM's own layer does in several times as many operations: norm, projections, rotation, cache
write, attention to the latents, output projection, residual and norm, then a dense MLP or routing,
shared and routed experts. What is not quantised stays vLLM's: the projection to the latents,
routing, and the attention of prompts.
Everything is rounded where vLLM's layer rounds it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tunan.engine.cpu.latent_rotation import LatentRotation, Rotate
from tunan.engine.cpu.mla import CpuMlaImpl
from tunan.engine.cpu.packed_linear import PackedLayer, packed_of
from tunan.kernels.linear import QuantizedRows, linear, linear_quantized, quantize
from tunan.kernels.norm import rms_norm, rms_norm_quantized, swiglu_quantized

AddUp = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class LatentBatch:
    """positions int64 [tokens]; by vLLM's name of an attention layer, its metadata and slots."""

    positions: torch.Tensor
    metadata: Any
    slots: Mapping[str, torch.Tensor]


class LatentLayers:
    """All decoder layers of a DeepSeek-V2 or V3, called one after another.

    `add_up`: of a rank among several, adds up what each has computed of a tensor and returns it.
    """

    def __init__(self, model: Any, dtype: torch.dtype, add_up: AddUp | None = None) -> None:
        add_up = add_up or _alone
        self._layers = [_Layer(layer, add_up) for layer in model.model.layers]
        # vLLM's names of the attention layers.
        self.names = tuple(layer.attention.name for layer in self._layers)
        # vLLM makes one for all layers.
        self._rotation = LatentRotation(model.model.layers[0].self_attn.rotary_emb, dtype)

    def __call__(
        self, hidden: torch.Tensor, batch: LatentBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Runs every layer on the embedded tokens `hidden` [tokens, size].

        Returns (hidden, residual), both new, as vLLM's layers leave them for the last norm.
        """
        # The first norm is of the embedding alone, which is what it is of it and a zero.
        residual = torch.zeros_like(hidden, memory_format=torch.contiguous_format)
        hidden = hidden.contiguous()
        rotate = self._rotation.of(batch.positions)
        for layer in self._layers:
            hidden = layer(hidden, residual, rotate, batch)
        return hidden, residual


class _Layer:
    def __init__(self, layer: Any, add_up: AddUp) -> None:
        self._norm = _Norm.of(layer.input_layernorm)
        self.attention = _Attention(layer.self_attn)
        norm = _Norm.of(layer.post_attention_layernorm)
        mlp = layer.mlp
        self._mlp = _Mixture(norm, mlp) if hasattr(mlp, "experts") else _Dense(norm, mlp)
        self._add_up = add_up

    def __call__(
        self, hidden: torch.Tensor, residual: torch.Tensor, rotate: Rotate, batch: LatentBatch
    ) -> torch.Tensor:
        """The layer's output, without the residual, which is replaced."""
        hidden = self._add_up(self.attention(self._norm(hidden, residual), rotate, batch))
        return self._add_up(self._mlp(hidden, residual))


@dataclass(frozen=True)
class _Norm:
    weight: torch.Tensor
    epsilon: float

    @classmethod
    def of(cls, module: Any) -> "_Norm":
        return cls(module.weight.data, module.variance_epsilon)

    def quantized(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> QuantizedRows:
        return rms_norm_quantized(x, self.weight, self.epsilon, residual)

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        return rms_norm(x, self.weight, self.epsilon, residual)


class _Attention:
    """From normed rows to the output projection of a rank's heads."""

    def __init__(self, module: Any) -> None:
        outer = module.mla_attn
        self._vllms = outer.mla_attn
        self.name: str = self._vllms.layer_name
        self._heads: int = outer.num_heads
        self._nope: int = outer.qk_nope_head_dim
        self._latent: int = outer.kv_lora_rank
        self._value: int = outer.v_head_dim
        self._latent_norm = _Norm.of(outer.kv_a_layernorm)
        self._query_rank: int = outer.q_lora_rank or 0
        if self._query_rank:
            self._down = _linear(outer.fused_qkv_a_proj)
            self._query_norm = _Norm.of(outer.q_a_layernorm)
            self._query = _packed(outer.q_b_proj)
        else:
            self._down = _linear(outer.kv_a_proj_with_mqa)
            self._query = _packed(outer.q_proj)
        self._output = _packed(outer.o_proj)

    def __call__(self, x: torch.Tensor, rotate: Rotate, batch: LatentBatch) -> torch.Tensor:
        query, latent, key = self._project(x)
        rotate(query[..., self._nope :], key)
        mla, metadata = self._vllms, batch.metadata[self.name]
        mla.impl.do_kv_cache_update(
            latent, key, mla.kv_cache, batch.slots[self.name], mla.kv_cache_dtype, mla._k_scale
        )
        attended = x.new_empty(len(x), self._heads * self._value)
        if metadata.num_prefills or not isinstance(mla.impl, CpuMlaImpl):
            mla.forward_impl(query, latent, key, mla.kv_cache, metadata, output=attended)
        else:
            self._decode(query, metadata, attended)
        return linear(attended, self._output.packed)

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """query [tokens, heads, nope + rope] and key [tokens, 1, rope], not rotated yet, and the
        normed latent [tokens, latent]: (query, latent, key)."""
        down = self._down(x)
        if self._query_rank:
            rows = self._query_norm.quantized(down[:, : self._query_rank])
            query = _product(rows, self._query, x.dtype)
            down = down[:, self._query_rank :]
        else:
            query = linear(x, self._query.packed)
        latent = self._latent_norm(down[:, : self._latent])
        key = down[:, self._latent :].unsqueeze(1)
        return query.view(len(query), self._heads, -1), latent, key

    def _decode(self, query: torch.Tensor, metadata: Any, out: torch.Tensor) -> None:
        """Attention in latent space of queries that are each the last of their sequence: what
        vLLM's `forward_impl` does of it."""
        mla = self._vllms
        nope = query[..., : self._nope].transpose(0, 1)
        absorbed = query.new_empty(len(query), self._heads, self._latent)
        torch.bmm(nope, mla.W_UK_T, out=absorbed.transpose(0, 1))
        both = (absorbed, query[..., self._nope :])
        found, _ = mla.impl.forward_mqa(both, mla.kv_cache, metadata, mla)
        values = out.view(len(query), self._heads, self._value)
        torch.bmm(found.transpose(0, 1), mla.W_UV, out=values.transpose(0, 1))


class _Mlp:
    """Gate and up, SwiGLU, down, of rows that are normed and quantised."""

    def __init__(self, module: Any) -> None:
        self._gate_up, self._down = _packed(module.gate_up_proj), _packed(module.down_proj)

    def __call__(self, rows: QuantizedRows, dtype: torch.dtype) -> torch.Tensor:
        return _product(swiglu_quantized(_product(rows, self._gate_up, dtype)), self._down, dtype)


class _Dense:
    """The norm of hidden + residual, which replaces the residual, and an MLP."""

    def __init__(self, norm: _Norm, module: Any) -> None:
        self._norm, self._mlp = norm, _Mlp(module)

    def __call__(self, hidden: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self._mlp(self._norm.quantized(hidden, residual), hidden.dtype)


class _Mixture:
    """The same with routed and shared experts: what a rank has of their sum."""

    def __init__(self, norm: _Norm, module: Any) -> None:
        runner = module.experts
        self._norm, self._gate, self._router = norm, module.gate, runner.router
        self._experts = runner.routed_experts
        self._scale: float = runner.routed_scaling_factor
        self._shared = None if module.shared_experts is None else _Mlp(module.shared_experts)

    def __call__(self, hidden: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        x = self._norm(hidden, residual)
        logits, _ = self._gate(x)
        weights, chosen = self._router.select_experts(hidden_states=x, router_logits=logits)
        method = self._experts.quant_method
        routed: torch.Tensor = method.apply(self._experts, x, weights, chosen, None, None)
        if self._scale != 1:
            routed *= self._scale
        return routed if self._shared is None else self._shared(quantize(x), x.dtype) + routed


def _product(rows: QuantizedRows, layer: PackedLayer, dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty(len(rows.scales), layer.packed.outputs, dtype=dtype)
    return linear_quantized(rows, layer.packed, out)


def _linear(module: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """A layer without a bias; `tunan convert` leaves those to the latents as they are."""
    found = packed_of(module)
    if found is not None:
        packed = found.packed
        return lambda x: linear(x, packed)

    def vllms(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = module(x)[0]
        return result

    return vllms


def _packed(module: Any) -> PackedLayer:
    found = packed_of(module)
    if found is None:
        raise ValueError("coverage.refusal() lets only packed layers through")
    return found


def _alone(of_one_rank: torch.Tensor) -> torch.Tensor:
    return of_one_rank
