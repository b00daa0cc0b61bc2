"""Products with weights that are not quantised, in one order of sums (native/dense/dense.h).

A row gives the same bits alone as among others, in every instruction set and with any number of
threads. Made for few rows: what a projection to the latents or a router has in decoding.
"""

import ctypes
import functools
from typing import Any

import torch

from tunan.errors import UsageError
from tunan.kernels import library

_TYPES = {torch.float32: 0, torch.bfloat16: 1}


class _Call(ctypes.Structure):
    """native/dense/dense.h: DenseCall."""

    _fields_ = [
        ("x", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("x_stride", ctypes.c_int64),
        ("x_batch_stride", ctypes.c_int64),
        ("weight_stride", ctypes.c_int64),
        ("weight_batch_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("out_batch_stride", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("batches", ctypes.c_int64),
        ("type", ctypes.c_int32),
        ("transposed", ctypes.c_int32),
    ]


def dense(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [..., K] times weight [N, K], both float32 or bfloat16: [..., N] of that type.

    Sums are float32. Raises UsageError.
    """
    if weight.dim() != 2 or x.shape[-1:] != weight.shape[1:]:
        raise UsageError(f"x {tuple(x.shape)} for weights {tuple(weight.shape)}")
    rows = x.reshape(1, -1, x.shape[-1])
    return dense_of_batches(rows, weight.unsqueeze(0)).view(*x.shape[:-1], -1)


def dense_of_batches(
    x: torch.Tensor, weight: torch.Tensor, *, transposed: bool = False
) -> torch.Tensor:
    """x [batches, M, K] times weight [batches, N, K], or [batches, K, N] if transposed: a tensor
    [batches, M, N] whose rows of one m follow one another. Raises UsageError.
    """
    outputs = weight.shape[-1] if transposed else weight.shape[-2]
    inputs = weight.shape[-2] if transposed else weight.shape[-1]
    if x.dim() != 3 or weight.dim() != 3 or len(x) != len(weight) or x.shape[2] != inputs:
        raise UsageError(f"x {tuple(x.shape)} for weights {tuple(weight.shape)}")
    if x.dtype not in _TYPES or weight.dtype != x.dtype:
        raise UsageError(f"x of {x.dtype}, weights of {weight.dtype}; float32 or bfloat16, as one")
    if x.stride(2) != 1 or weight.stride(2) != 1:
        raise UsageError(f"rows are in pieces: strides {x.stride()}, {weight.stride()}")
    out = x.new_empty(x.shape[1], len(x), outputs).transpose(0, 1)
    call = _Call(
        x.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        x.stride(1),
        x.stride(0),
        weight.stride(1),
        weight.stride(0),
        out.stride(1),
        out.stride(0),
        x.shape[1],
        inputs,
        outputs,
        len(x),
        _TYPES[x.dtype],
        transposed,
    )
    library.check(_function()(ctypes.byref(call)))
    return out


@functools.cache
def _function() -> Any:
    return library.function("tunan_dense", ctypes.c_int, ctypes.c_void_p)
