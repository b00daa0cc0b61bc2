"""RMS norm and SwiGLU, alone or with the quantisation that the next linear layer needs.

They round where vLLM's own operators do, so that in bfloat16 every intermediate that it keeps in
the activations' type is rounded to it here.
"""

import ctypes
import functools
from typing import Any

import torch

from tunan.errors import UsageError
from tunan.kernels import library
from tunan.kernels.linear import QuantizedRows

_FLOAT_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class _Quantized(ctypes.Structure):
    """native/norm/norm.h: QuantizedRows."""

    _fields_ = [
        ("values", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("sums", ctypes.c_void_p),
    ]


class _Norm(ctypes.Structure):
    """native/norm/norm.h: NormCall."""

    _fields_ = [
        ("x", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("quantized", _Quantized),
        ("x_stride", ctypes.c_int64),
        ("residual_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("type", ctypes.c_int32),
        ("epsilon", ctypes.c_float),
    ]


class _Swiglu(ctypes.Structure):
    """native/norm/norm.h: SwigluCall."""

    _fields_ = [
        ("x", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("quantized", _Quantized),
        ("x_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("type", ctypes.c_int32),
    ]


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """x [rows, size] / sqrt(mean of squares + epsilon) * weight [size], all of one type: float32,
    bfloat16 or float16 (Zhang and Sennrich, arXiv 1910.07467).

    With a residual, x + residual is normed and replaces the residual. `out` may be x. Raises
    UsageError.
    """
    result = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    _norm(x, weight, epsilon, residual, result, None)
    return result


def rms_norm_quantized(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    residual: torch.Tensor | None = None,
) -> QuantizedRows:
    """`quantize(rms_norm(...))` in one pass, bit for bit. Raises UsageError."""
    quantized = _empty_rows(x.shape[0], x.shape[-1])
    _norm(x, weight, epsilon, residual, None, quantized)
    return quantized


def swiglu(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """silu(x[:, :size]) * x[:, size:] of x [rows, 2 size]: [rows, size] (arXiv 2002.05202).

    Raises UsageError.
    """
    result = x.new_empty(x.shape[0], x.shape[-1] // 2) if out is None else out
    _swiglu(x, result, None)
    return result


def swiglu_quantized(x: torch.Tensor) -> QuantizedRows:
    """`quantize(swiglu(x))` in one pass, bit for bit. Raises UsageError."""
    quantized = _empty_rows(x.shape[0], x.shape[-1] // 2)
    _swiglu(x, None, quantized)
    return quantized


def _norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    residual: torch.Tensor | None,
    out: torch.Tensor | None,
    quantized: QuantizedRows | None,
) -> None:
    rows, size = _matrix("x", x, x.dtype)
    for name, other in (("the residual", residual), ("the output", out)):
        if other is not None and _matrix(name, other, x.dtype) != (rows, size):
            raise UsageError(f"{name} is {tuple(other.shape)}; x is {tuple(x.shape)}")
    if weight is not None and (
        weight.shape != (size,) or weight.dtype != x.dtype or not weight.is_contiguous()
    ):
        raise UsageError(f"the weight is {tuple(weight.shape)} {weight.dtype}; [{size}] {x.dtype}")
    call = _Norm(
        x.data_ptr(),
        None if residual is None else residual.data_ptr(),
        None if weight is None else weight.data_ptr(),
        None if out is None else out.data_ptr(),
        _pointers(quantized),
        _stride(x),
        0 if residual is None else _stride(residual),
        0 if out is None else _stride(out),
        rows,
        size,
        _FLOAT_TYPES[x.dtype],
        epsilon,
    )
    library.check(_function("tunan_rms_norm")(ctypes.byref(call)))


def _swiglu(x: torch.Tensor, out: torch.Tensor | None, quantized: QuantizedRows | None) -> None:
    rows, both = _matrix("x", x, x.dtype)
    if both % 2:
        raise UsageError(f"x is {tuple(x.shape)}; SwiGLU takes a gate and as many values")
    if out is not None and _matrix("the output", out, x.dtype) != (rows, both // 2):
        raise UsageError(f"the output is {tuple(out.shape)}; ({rows}, {both // 2}) is needed")
    call = _Swiglu(
        x.data_ptr(),
        None if out is None else out.data_ptr(),
        _pointers(quantized),
        _stride(x),
        0 if out is None else _stride(out),
        rows,
        both // 2,
        _FLOAT_TYPES[x.dtype],
    )
    library.check(_function("tunan_swiglu")(ctypes.byref(call)))


@functools.cache
def _function(name: str) -> Any:
    return library.function(name, ctypes.c_int, ctypes.c_void_p)


def _empty_rows(rows: int, size: int) -> QuantizedRows:
    stride = int(_activation_stride()(size))
    return QuantizedRows(
        torch.empty(rows, stride, dtype=torch.int8),
        torch.empty(rows, dtype=torch.float32),
        torch.empty(rows, stride // 32, dtype=torch.int32),
        size,
    )


@functools.cache
def _activation_stride() -> Any:
    return library.function("tunan_linear_activation_stride", ctypes.c_int64, ctypes.c_int64)


def _pointers(rows: QuantizedRows | None) -> _Quantized:
    if rows is None:
        return _Quantized(None, None, None)
    return _Quantized(rows.values.data_ptr(), rows.scales.data_ptr(), rows.sums.data_ptr())


def _matrix(name: str, x: torch.Tensor, dtype: torch.dtype) -> tuple[int, int]:
    if x.dim() != 2 or x.dtype != dtype or dtype not in _FLOAT_TYPES:
        raise UsageError(
            f"{name} is {tuple(x.shape)} {x.dtype}; [rows, size] of float32, bfloat16 or float16,"
            " all of one type, is needed"
        )
    if x.shape[1] > 1 and x.stride(1) != 1:
        raise UsageError(f"the rows of {name} are in pieces: strides {x.stride()}")
    return x.shape[0], x.shape[1]


def _stride(x: torch.Tensor) -> int:
    return x.stride(0) if x.shape[0] > 1 else x.shape[1]
