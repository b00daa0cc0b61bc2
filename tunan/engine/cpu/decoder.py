"""The decoder layers of a Llama or Qwen2 as one call each into the kernels.

What vLLM's own layer does in about twenty operations: norm and quantise, qkv, rotation and
KV write, attention, output projection, residual, norm and quantise, gate and up, SwiGLU and
quantise, down. The same operations in the same order, so the same bits.
"""

import ctypes
from dataclasses import dataclass
from typing import Any

import torch

from tunan.engine.cpu.packed_linear import PackedLayer, packed_of
from tunan.kernels import library
from tunan.kernels.kv_cache import CacheArgument
from tunan.kernels.layer import FLOAT_TYPES, WeightsArgument, layer_function, step_argument


@dataclass(frozen=True)
class Batch:
    """What vLLM's attention metadata says of a step, as the kernels take it.

    positions, slots: int64 [tokens]; query_start: int32 [sequences + 1]; seq_lens: int32
    [sequences]; block_table: int32 [sequences, blocks].
    """

    positions: torch.Tensor
    slots: torch.Tensor
    query_start: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor


class DecoderLayers:
    """All decoder layers of a model, called one after another."""

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self._layers = list(model.model.layers)
        # vLLM's names of the attention layers.
        self.names = tuple(layer.self_attn.attn.layer_name for layer in self._layers)
        self._kept = [_rotary_cache(layer, dtype) for layer in self._layers]
        self._weights = [
            _weights(layer, cache, dtype)
            for layer, cache in zip(self._layers, self._kept, strict=True)
        ]
        self._caches: list[CacheArgument] = []
        self._caches_at: int | None = None
        self._call = layer_function()

    def __call__(self, hidden: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Runs every layer on the embedded tokens `hidden` [tokens, size].

        Returns (hidden, residual), both new, as vLLM's layers leave them for the last norm.
        """
        hidden = hidden.contiguous().clone()
        residual = torch.empty_like(hidden)
        step = step_argument(
            hidden,
            residual,
            batch.positions,
            batch.slots,
            batch.query_start,
            batch.seq_lens,
            batch.block_table,
            first=True,
        )
        self._bind_caches()
        at = ctypes.byref(step)
        for weights, cache in zip(self._weights, self._caches, strict=True):
            library.check(self._call(ctypes.byref(weights), ctypes.byref(cache), at))
            step.first_layer = 0
        return hidden, residual

    def _bind_caches(self) -> None:
        """vLLM binds the caches after loading, and may bind others later."""
        first = self._layers[0].self_attn.attn.kv_cache.data_ptr()
        if first != self._caches_at:
            attentions = [layer.self_attn.attn for layer in self._layers]
            self._caches = [a.impl.cache(a.kv_cache).argument() for a in attentions]
            self._caches_at = first


def _rotary_cache(layer: Any, dtype: torch.dtype) -> torch.Tensor:
    cache: torch.Tensor = layer.self_attn.rotary_emb.cos_sin_cache.to(dtype).contiguous()
    return cache


def _weights(layer: Any, cos_sin: torch.Tensor, dtype: torch.dtype) -> WeightsArgument:
    attention, mlp = layer.self_attn, layer.mlp
    qkv, output = _packed(attention.qkv_proj), _packed(attention.o_proj)
    gate_up, down = _packed(mlp.gate_up_proj), _packed(mlp.down_proj)
    return WeightsArgument(
        layer.input_layernorm.weight.data_ptr(),
        layer.post_attention_layernorm.weight.data_ptr(),
        qkv.packed.data.data_ptr(),
        _pointer(qkv.bias),
        output.packed.data.data_ptr(),
        _pointer(output.bias),
        gate_up.packed.data.data_ptr(),
        down.packed.data.data_ptr(),
        cos_sin.data_ptr(),
        cos_sin.shape[0],
        qkv.packed.inputs,
        down.packed.inputs,
        attention.num_heads,
        attention.num_kv_heads,
        attention.head_dim,
        cos_sin.shape[1],
        attention.rotary_emb.is_neox_style,
        FLOAT_TYPES[dtype],
        layer.input_layernorm.variance_epsilon,
        attention.scaling,
        attention.attn.impl.window,
    )


def _packed(module: Any) -> PackedLayer:
    found = packed_of(module)
    if found is None:
        raise ValueError("coverage.refusal() lets only packed layers through")
    return found


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
