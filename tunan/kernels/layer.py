"""A decoder layer of the Llama family in one call."""

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

import torch

from tunan.errors import UsageError
from tunan.kernels import library
from tunan.kernels.kv_cache import PagedKVCache
from tunan.kernels.linear import PackedLinear

FLOAT_TYPES = {torch.float32: 0, torch.bfloat16: 1}


class WeightsArgument(ctypes.Structure):
    """native/layer/layer.h: LayerWeights."""

    _fields_ = [
        ("input_norm", ctypes.c_void_p),
        ("post_norm", ctypes.c_void_p),
        ("qkv", ctypes.c_void_p),
        ("qkv_bias", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("output_bias", ctypes.c_void_p),
        ("gate_up", ctypes.c_void_p),
        ("down", ctypes.c_void_p),
        ("cos_sin", ctypes.c_void_p),
        ("max_position", ctypes.c_int64),
        ("hidden", ctypes.c_int32),
        ("intermediate", ctypes.c_int32),
        ("heads", ctypes.c_int32),
        ("key_heads", ctypes.c_int32),
        ("head_size", ctypes.c_int32),
        ("rotary_size", ctypes.c_int32),
        ("neox", ctypes.c_int32),
        ("type", ctypes.c_int32),
        ("epsilon", ctypes.c_float),
        ("scale", ctypes.c_float),
        ("window", ctypes.c_int32),
    ]


class StepArgument(ctypes.Structure):
    """native/layer/layer.h: LayerStep."""

    _fields_ = [
        ("hidden", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("query_start", ctypes.c_void_p),
        ("seq_lens", ctypes.c_void_p),
        ("block_table", ctypes.c_void_p),
        ("table_stride", ctypes.c_int64),
        ("table_width", ctypes.c_int32),
        ("sequences", ctypes.c_int32),
        ("tokens", ctypes.c_int32),
        ("first_layer", ctypes.c_int32),
    ]


@dataclass(frozen=True)
class LayerWeights:
    """One layer of Llama or Qwen2.

    Norms [hidden] and cos_sin [max_position, rotary] have the activations' type, float32 or
    bfloat16. Packed: qkv [(heads + 2 key_heads) head_size, hidden] (queries, keys, values), output
    [hidden, heads head_size], gate_up [2 intermediate, hidden], down [hidden, intermediate]. Biases
    are float32 or None. window: as in `paged_attention`.
    """

    input_norm: torch.Tensor
    post_norm: torch.Tensor
    qkv: PackedLinear
    output: PackedLinear
    gate_up: PackedLinear
    down: PackedLinear
    cos_sin: torch.Tensor
    heads: int
    key_heads: int
    head_size: int
    epsilon: float
    scale: float
    qkv_bias: torch.Tensor | None = None
    output_bias: torch.Tensor | None = None
    neox: bool = True
    window: int = 0

    def __post_init__(self) -> None:
        dtype, hidden = self.input_norm.dtype, self.input_norm.numel()
        needed = {
            "input_norm": (self.input_norm, dtype, (hidden,)),
            "post_norm": (self.post_norm, dtype, (hidden,)),
            "cos_sin": (self.cos_sin, dtype, tuple(self.cos_sin.shape)),
            "qkv_bias": (self.qkv_bias, torch.float32, (self.qkv.outputs,)),
            "output_bias": (self.output_bias, torch.float32, (hidden,)),
        }
        if dtype not in FLOAT_TYPES or self.cos_sin.dim() != 2:
            raise UsageError(f"norms of {dtype}, cos_sin {tuple(self.cos_sin.shape)}")
        for name, (tensor, kind, shape) in needed.items():
            if tensor is not None:
                _check(name, tensor, kind, shape)

    @functools.cached_property
    def argument(self) -> Any:
        """What the kernels take; valid as long as this object is."""
        return WeightsArgument(
            self.input_norm.data_ptr(),
            self.post_norm.data_ptr(),
            self.qkv.data.data_ptr(),
            None if self.qkv_bias is None else self.qkv_bias.data_ptr(),
            self.output.data.data_ptr(),
            None if self.output_bias is None else self.output_bias.data_ptr(),
            self.gate_up.data.data_ptr(),
            self.down.data.data_ptr(),
            self.cos_sin.data_ptr(),
            self.cos_sin.shape[0],
            self.input_norm.numel(),
            self.down.inputs,
            self.heads,
            self.key_heads,
            self.head_size,
            self.cos_sin.shape[1],
            self.neox,
            FLOAT_TYPES[self.input_norm.dtype],
            self.epsilon,
            self.scale,
            self.window,
        )


@dataclass(frozen=True)
class Batch:
    """What all layers of a step share; the terms are those of `paged_attention` and `write_cache`.

    positions, slots int64 [tokens]; query_start int32 [sequences + 1]; seq_lens int32 [sequences];
    block_table int32 [sequences, blocks].
    """

    positions: torch.Tensor
    slots: torch.Tensor
    query_start: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor

    def __post_init__(self) -> None:
        tokens, sequences = self.positions.numel(), self.seq_lens.numel()
        _check("positions", self.positions, torch.int64, (tokens,))
        _check("slots", self.slots, torch.int64, (tokens,))
        _check("query_start", self.query_start, torch.int32, (sequences + 1,))
        _check("seq_lens", self.seq_lens, torch.int32, (sequences,))
        table = self.block_table
        if table.dtype != torch.int32 or table.dim() != 2 or table.shape[0] < sequences:
            raise UsageError(f"the block table is {tuple(table.shape)} {table.dtype}")
        if table.shape[1] > 1 and table.stride(1) != 1:
            raise UsageError(f"the rows of the block table are in pieces: {table.stride()}")


def decoder_layer(
    weights: LayerWeights,
    cache: PagedKVCache,
    batch: Batch,
    hidden: torch.Tensor,
    residual: torch.Tensor,
    *,
    first: bool = False,
) -> None:
    """Replaces hidden and residual, both [tokens, hidden], by the layer's.

    first: the residual is unset, and becomes hidden. The bits are those of the single operators:
    rms_norm_quantized, linear_quantized, rotate_and_write, paged_attention, swiglu_quantized.
    Raises UsageError, CheckFailedError (weights packed for another instruction set).
    """
    shape = (batch.positions.numel(), weights.input_norm.numel())
    for name, tensor in (("hidden", hidden), ("residual", residual)):
        _check(name, tensor, weights.input_norm.dtype, shape)
    step = step_argument(
        hidden,
        residual,
        batch.positions,
        batch.slots,
        batch.query_start,
        batch.seq_lens,
        batch.block_table,
        first=first,
    )
    argument = cache.argument()
    library.check(
        layer_function()(ctypes.byref(weights.argument), ctypes.byref(argument), ctypes.byref(step))
    )


def step_argument(
    hidden: torch.Tensor,
    residual: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    *,
    first: bool,
) -> StepArgument:
    """The step as the library takes it, unchecked; the tensors (see `Batch`) have to outlive it."""
    return StepArgument(
        hidden.data_ptr(),
        residual.data_ptr(),
        positions.data_ptr(),
        slots.data_ptr(),
        query_start.data_ptr(),
        seq_lens.data_ptr(),
        block_table.data_ptr(),
        block_table.stride(0),
        block_table.shape[1],
        seq_lens.shape[0],
        slots.shape[0],
        first,
    )


@functools.cache
def layer_function() -> Any:
    """`tunan_decoder_layer` of native/layer/layer.h: weights, cache and step, each by pointer."""
    pointer = ctypes.c_void_p
    return library.function("tunan_decoder_layer", ctypes.c_int, pointer, pointer, pointer)


@functools.cache
def half_functions() -> tuple[Any, Any]:
    """`tunan_attention_half`: weights, cache and step; `tunan_mlp_half`: weights and step.

    One after the other they are `layer_function`. Under tensor parallelism the ranks' `hidden` are
    added up after each.
    """
    pointer = ctypes.c_void_p
    return (
        library.function("tunan_attention_half", ctypes.c_int, pointer, pointer, pointer),
        library.function("tunan_mlp_half", ctypes.c_int, pointer, pointer),
    )


def _check(name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype or tuple(tensor.shape) != shape or not tensor.is_contiguous():
        raise UsageError(
            f"{name} is {tuple(tensor.shape)} {tensor.dtype}; {shape} {dtype}, in one piece, is"
            " needed"
        )
