"""A mixture of experts of int8 or int4 weights in one call (native/moe/moe.h).

The rows of all tokens are gathered expert by expert; then gate and up, SwiGLU, down, and the
weighted sum of a token's experts. The bits are those of the single operators, `linear` and
`swiglu`, so a token gives the same bits alone as in any batch, on any instruction set and with any
number of threads. Who goes where and with which weight is the caller's business.
"""

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

import torch

from tunan.errors import UsageError
from tunan.kernels import library
from tunan.kernels.linear import PackedLinear, pack_w4, pack_w8, read_packed

_FLOAT_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


@dataclass(frozen=True)
class PackedExperts:
    """The packed weights of `count` experts, all of one form, one after the other in `data`
    [bytes] uint8; the rest as in `PackedLinear`."""

    data: torch.Tensor
    count: int
    outputs: int
    inputs: int
    bits: int
    group: int

    def __post_init__(self) -> None:
        if self.count < 1 or self.data.numel() % self.count:
            raise UsageError(f"{self.data.numel()} bytes are no {self.count} experts")

    @property
    def bytes_each(self) -> int:
        return self.data.numel() // self.count

    def __getitem__(self, expert: int) -> PackedLinear:
        """One expert's weights, for `linear`."""
        first = expert * self.bytes_each
        data = self.data[first : first + self.bytes_each]
        return PackedLinear(data, self.outputs, self.inputs, self.bits, self.group)


class _Call(ctypes.Structure):
    """native/moe/moe.h: ExpertsCall."""

    _fields_ = [
        ("x", ctypes.c_void_p),
        ("experts", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("gate_up", ctypes.c_void_p),
        ("down", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("gate_up_bytes", ctypes.c_int64),
        ("down_bytes", ctypes.c_int64),
        ("x_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("top_k", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("hidden", ctypes.c_int32),
        ("intermediate", ctypes.c_int32),
        ("type", ctypes.c_int32),
    ]


def pack_experts(
    weight: torch.Tensor, scale: torch.Tensor, group: int, out: torch.Tensor
) -> PackedExperts:
    """Packs the weights of all experts into `out`, uint8, at a multiple of 64.

    weight [experts, N, K] int8; scale [experts, N] or [experts, N, 1] and group 0 (8 bits), or
    [experts, N, K / group] float32 or float16 (4 bits, -8 to 7). `out` is as long as all experts'
    `linear.packed_bytes` together. Raises UsageError, KernelsUnavailableError.
    """
    if weight.dim() != 3 or not len(weight) or out.numel() % len(weight):
        raise UsageError(
            f"weights {tuple(weight.shape)} for {out.numel()} bytes; [experts, N, K] of one size"
        )
    each = out.numel() // len(weight)
    for expert, (values, scales) in enumerate(zip(weight, scale, strict=True)):
        place = out[expert * each : (expert + 1) * each]
        if group:
            pack_w4(values, scales, group, out=place)
        else:
            pack_w8(values, scales, out=place)
    return read_experts(out, len(weight))


def read_experts(data: torch.Tensor, count: int) -> PackedExperts:
    """Experts packed earlier, by this process or another: `data` [bytes] uint8.

    What the first one's header says is believed of all; `run_experts` looks at each that it uses.
    Raises CheckFailedError as `linear.read_packed` does, UsageError.
    """
    if count < 1 or data.numel() % count:
        raise UsageError(f"{data.numel()} bytes are no {count} experts")
    first = read_packed(data[: data.numel() // count])
    return PackedExperts(data, count, first.outputs, first.inputs, first.bits, first.group)


def run_experts(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    gate_up: PackedExperts,
    down: PackedExperts,
) -> torch.Tensor:
    """The weighted sum of the experts of each token: [tokens, hidden] of x's type.

    x [tokens, hidden] float32, bfloat16 or float16; experts [tokens, top_k] int32, where a
    negative one adds nothing; weights [tokens, top_k] float32; gate_up of [2 intermediate, hidden]
    (gate first), down of [hidden, intermediate]. The sum is float32, from the lowest expert to the
    highest, and then rounded. Raises UsageError, CheckFailedError (packed for another instruction
    set).
    """
    _check(x, experts, weights, gate_up, down)
    out = torch.empty(x.shape, dtype=x.dtype)
    if not len(x):
        return out
    call = _Call(
        x.data_ptr(),
        experts.data_ptr(),
        weights.data_ptr(),
        gate_up.data.data_ptr(),
        down.data.data_ptr(),
        out.data_ptr(),
        gate_up.bytes_each,
        down.bytes_each,
        x.stride(0),
        out.stride(0),
        x.shape[0],
        experts.shape[1],
        gate_up.count,
        x.shape[1],
        down.inputs,
        _FLOAT_TYPES[x.dtype],
    )
    library.check(_function()(ctypes.byref(call)))
    return out


@functools.cache
def _function() -> Any:
    return library.function("tunan_experts", ctypes.c_int, ctypes.c_void_p)


def _check(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    gate_up: PackedExperts,
    down: PackedExperts,
) -> None:
    if x.dim() != 2 or x.dtype not in _FLOAT_TYPES or x.stride(1) != 1:
        raise UsageError(
            f"x is {tuple(x.shape)} {x.dtype}; [tokens, hidden] of float32, bfloat16 or float16,"
            " each row in one piece, is needed"
        )
    for name, tensor, dtype in (
        ("experts", experts, torch.int32),
        ("weights", weights, torch.float32),
    ):
        if tensor.dim() != 2 or len(tensor) != len(x) or tensor.dtype != dtype:
            raise UsageError(f"{name}: {tuple(tensor.shape)} {tensor.dtype} for {len(x)} tokens")
        if not tensor.is_contiguous():
            raise UsageError(f"{name} are in pieces: strides {tensor.stride()}")
    if experts.shape != weights.shape:
        raise UsageError(f"experts {tuple(experts.shape)}, weights {tuple(weights.shape)}")
    if gate_up.count != down.count:
        raise UsageError(f"{gate_up.count} experts have gate and up, {down.count} down")
