"""The decoder layers of a Llama or Qwen2 as one call each into the kernels.

What vLLM's own layer does in about twenty operations: norm and quantise, qkv, rotation and
KV write, attention, output projection, residual, norm and quantise, gate and up, SwiGLU and
quantise, down. The same operations in the same order, so the same bits.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tunan.engine.cpu.packed_linear import PackedLayer, packed_of
from tunan.kernels import library
from tunan.kernels.kv_cache import CacheArgument
from tunan.kernels.layer import (
    FLOAT_TYPES,
    StepArgument,
    WeightsArgument,
    half_functions,
    layer_function,
    step_argument,
)

# Where a layer's KV cache lies: address, shape, strides.
CachePlace = tuple[int, tuple[int, ...], tuple[int, ...]]


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
    """All decoder layers of a model, called one after another.

    `add_up`: of a rank among several, adds up what each has computed of a tensor and returns it.
    """

    def __init__(
        self,
        model: Any,
        dtype: torch.dtype,
        add_up: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        self._add_up = add_up
        self._layers = list(model.model.layers)
        # vLLM's names of the attention layers.
        self.names = tuple(layer.self_attn.attn.layer_name for layer in self._layers)
        self._kept = [_rotary_cache(layer, dtype) for layer in self._layers]
        self._weights = [
            _weights(layer, cache, dtype)
            for layer, cache in zip(self._layers, self._kept, strict=True)
        ]
        self._caches: list[CacheArgument] = []
        self._caches_at: list[CachePlace] = []

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
        if self._add_up is None:
            self._run_whole(step)
        else:
            hidden = self._run_in_halves(step, hidden, self._add_up)
        return hidden, residual

    def _run_whole(self, step: StepArgument) -> None:
        layer, at = layer_function(), ctypes.byref(step)
        for weights, cache in zip(self._weights, self._caches, strict=True):
            library.check(layer(ctypes.byref(weights), ctypes.byref(cache), at))
            step.first_layer = 0

    def _run_in_halves(
        self,
        step: StepArgument,
        hidden: torch.Tensor,
        add_up: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """Returns what `step.hidden` points to in the end: adding up may give a new tensor."""
        (attention, mlp), at = half_functions(), ctypes.byref(step)
        for weights, cache in zip(self._weights, self._caches, strict=True):
            library.check(attention(ctypes.byref(weights), ctypes.byref(cache), at))
            hidden = add_up(hidden).contiguous()
            step.hidden, step.first_layer = hidden.data_ptr(), 0
            library.check(mlp(ctypes.byref(weights), at))
            hidden = add_up(hidden).contiguous()
            step.hidden = hidden.data_ptr()
        return hidden

    def _bind_caches(self) -> None:
        """vLLM binds the caches after loading, and may bind others later, of any layer."""
        attentions = [layer.self_attn.attn for layer in self._layers]
        places = [_place(attention.kv_cache) for attention in attentions]
        if places != self._caches_at:
            self._caches = [a.impl.cache(a.kv_cache).argument() for a in attentions]
            self._caches_at = places


def _place(cache: torch.Tensor) -> CachePlace:
    return cache.data_ptr(), tuple(cache.shape), cache.stride()


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
        # What the ranks have is added up: one of them adds the bias.
        _pointer(output.bias if attention.o_proj.tp_rank == 0 else None),
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
