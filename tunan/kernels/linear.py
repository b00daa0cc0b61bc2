"""Linear layers of int8 or int4 weights and activations that are quantised to int8 row by row.

Weights are packed once for the instruction set in use (native/linear/layout.h); the packed bytes
may lie in a tensor or in a read-only mapping of a file that has them.

A result does not depend on the number of rows or threads, bit for bit: a row alone gives what it
gives in a batch. A row with a NaN or an infinity gives NaN in every output; one whose largest
magnitude is below 2^-100 counts as zero.
"""

import ctypes
from dataclasses import dataclass

import torch

from tunan.errors import CheckFailedError, UsageError
from tunan.kernels import library

_FLOAT_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_SCALE_TYPES = {torch.float32: 0, torch.float16: 1}
GROUPS = (32, 64, 128)


@dataclass(frozen=True)
class PackedLinear:
    """Packed weights: `data` [bytes] uint8, and what it says of itself.

    bits: 8 or 4. group: inputs that share a scale, 0 for all of an output's.
    """

    data: torch.Tensor
    outputs: int
    inputs: int
    bits: int
    group: int


@dataclass(frozen=True)
class QuantizedRows:
    """x[m][k] is about values[m][k] * scales[m].

    values [rows, stride] int8, -127 to 127, zero from `inputs` on; scales [rows] float32; sums
    [rows, stride / 32] int32: of every 32 values.
    """

    values: torch.Tensor
    scales: torch.Tensor
    sums: torch.Tensor
    inputs: int


def layout_key() -> str:
    """Names the layout that packed weights have here: machines with the same key share files."""
    number = library.function("tunan_linear_layout", ctypes.c_int)()
    version = library.function("tunan_linear_layout_version", ctypes.c_int)()
    return f"linear{number}v{version}"


def pack_w8(
    weight: torch.Tensor, scale: torch.Tensor, out: torch.Tensor | None = None
) -> PackedLinear:
    """Packs weight [N, K] int8 with a scale for each of the N outputs.

    `out` takes the packed bytes: uint8, at a multiple of 64, `packed_bytes(N, K)` long.
    Raises UsageError, KernelsUnavailableError.
    """
    outputs = _matrix(weight, torch.int8).shape[0]
    return _pack(weight, scale.reshape(outputs).float(), None, 8, 0, out)


def pack_grouped_w8(
    weight: torch.Tensor, scale: torch.Tensor, group: int, out: torch.Tensor | None = None
) -> PackedLinear:
    """Packs weight [N, K] int8 with scale [N, ceil(K / group)] float32 or float16 (Q8_0: group 32).

    Raises UsageError, KernelsUnavailableError.
    """
    return _pack(_matrix(weight, torch.int8), scale, None, 8, _group(group), out)


def pack_w4(
    weight: torch.Tensor,
    scale: torch.Tensor,
    group: int,
    zeros: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> PackedLinear:
    """Packs 4-bit weights [N, K] with scale [N, ceil(K / group)] float32 or float16.

    Symmetric: weight int8, -8 to 7. With zeros uint8, shaped as scale, 0 to 15: weight uint8, 0 to
    15, and a weight's value is (weight - zero) * scale. Raises UsageError, KernelsUnavailableError.
    """
    if zeros is None:
        nibbles = _matrix(weight, torch.int8) + 8
    else:
        nibbles = _matrix(weight, torch.uint8).view(torch.int8)
        if zeros.dtype != torch.uint8 or zeros.shape != scale.shape or int(zeros.max()) > 15:
            raise UsageError("zero points are uint8, 0 to 15, in the shape of the scales")
    if int(nibbles.min()) < 0 or int(nibbles.max()) > 15:
        raise UsageError("weights do not fit 4 bits: -8 to 7, or 0 to 15 with zero points")
    return _pack(nibbles, scale, zeros, 4, _group(group), out)


def packed_bytes(
    outputs: int,
    inputs: int,
    *,
    bits: int = 8,
    group: int = 0,
    scale_dtype: torch.dtype = torch.float32,
    zeros: bool = False,
) -> int:
    """Bytes that packed weights take. Raises UsageError if there is no such form."""
    size = library.function("tunan_linear_packed_bytes", ctypes.c_int64, *_FORM)(
        outputs, inputs, bits, group, _SCALE_TYPES[scale_dtype], zeros
    )
    if not size:
        raise UsageError(library.last_error())
    return int(size)


def read_packed(data: torch.Tensor) -> PackedLinear:
    """Weights packed earlier, by this process or another: `data` [bytes] uint8.

    What the header says is believed, so a file is to be verified before. Raises CheckFailedError if
    they are of a layout or version that the instruction set in use does not read, or cut short.
    """
    if data.numel() < 128:
        raise CheckFailedError(f"{data.numel()} bytes are too few for packed weights")
    found = (ctypes.c_int64 * 7)()
    library.check(
        library.function("tunan_linear_describe", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(
            data.data_ptr(), found
        )
    )
    outputs, inputs, bits, group, _, _, size = found
    if data.numel() < size:
        raise CheckFailedError(f"packed weights of {size} bytes are cut off after {data.numel()}")
    return PackedLinear(data, outputs, inputs, bits, group)


def linear(
    x: torch.Tensor,
    packed: PackedLinear,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """x [..., K] float32, bfloat16 or float16 times the weights, plus bias [N] float32.

    `out` [..., N] of any of these types is what is written, else a new tensor of x's type.
    Raises UsageError, CheckFailedError (weights packed for another instruction set).
    """
    rows = _rows(x, packed.inputs)
    if out is None:
        out = x.new_empty(*x.shape[:-1], packed.outputs)
    result = _result(out, rows.shape[0], packed)
    library.check(
        library.function("tunan_linear", ctypes.c_int, *_LINEAR)(
            packed.data.data_ptr(),
            rows.data_ptr(),
            _FLOAT_TYPES[rows.dtype],
            rows.stride(0),
            rows.shape[0],
            _bias(bias, packed),
            *result,
        )
    )
    return out


def quantize(x: torch.Tensor) -> QuantizedRows:
    """Quantises the rows of x [..., K] as `linear` does. Raises UsageError."""
    rows = _rows(x, x.shape[-1])
    count, inputs = rows.shape
    stride = int(
        library.function("tunan_linear_activation_stride", ctypes.c_int64, ctypes.c_int64)(inputs)
    )
    quantized = QuantizedRows(
        torch.empty(count, stride, dtype=torch.int8),
        torch.empty(count, dtype=torch.float32),
        torch.empty(count, stride // 32, dtype=torch.int32),
        inputs,
    )
    library.check(
        library.function("tunan_linear_quantize", ctypes.c_int, *_QUANTIZE)(
            rows.data_ptr(),
            _FLOAT_TYPES[rows.dtype],
            rows.stride(0),
            count,
            inputs,
            quantized.values.data_ptr(),
            quantized.scales.data_ptr(),
            quantized.sums.data_ptr(),
        )
    )
    return quantized


def linear_quantized(
    x: QuantizedRows, packed: PackedLinear, out: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """As `linear`, of rows that are quantised already. Raises UsageError, CheckFailedError."""
    rows = x.scales.shape[0]
    library.check(
        library.function("tunan_linear_quantized", ctypes.c_int, *_QUANTIZED)(
            packed.data.data_ptr(),
            x.values.data_ptr(),
            x.scales.data_ptr(),
            x.sums.data_ptr(),
            rows,
            x.inputs,
            _bias(bias, packed),
            *_result(out, rows, packed),
        )
    )
    return out


_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_FORM = (_LONG, _LONG, _INT, _INT, _INT, _INT)
_PACK = (_POINTER, _POINTER, _POINTER, _LONG, _LONG, _INT, _INT, _INT, _POINTER, _LONG)
_RESULT = (_POINTER, _INT, _LONG)
_LINEAR = (_POINTER, _POINTER, _INT, _LONG, _LONG, _POINTER, *_RESULT)
_QUANTIZE = (_POINTER, _INT, _LONG, _LONG, _LONG, _POINTER, _POINTER, _POINTER)
_QUANTIZED = (_POINTER, _POINTER, _POINTER, _POINTER, _LONG, _LONG, _POINTER, *_RESULT)


def _pack(
    values: torch.Tensor,
    scale: torch.Tensor,
    zeros: torch.Tensor | None,
    bits: int,
    group: int,
    out: torch.Tensor | None,
) -> PackedLinear:
    outputs, inputs = values.shape
    if group and scale.shape != (outputs, -(-inputs // group)):
        raise UsageError(
            f"scales {tuple(scale.shape)} for weights {outputs} x {inputs} in groups of {group};"
            f" they have to be {outputs} x {-(-inputs // group)}"
        )
    if scale.dtype not in _SCALE_TYPES:
        scale = scale.float()
    size = packed_bytes(
        outputs,
        inputs,
        bits=bits,
        group=group,
        scale_dtype=scale.dtype,
        zeros=zeros is not None,
    )
    data = torch.empty(size, dtype=torch.uint8) if out is None else out
    values, scale = values.contiguous(), scale.contiguous()
    if zeros is not None:
        zeros = zeros.contiguous()
    library.check(
        library.function("tunan_linear_pack", ctypes.c_int, *_PACK)(
            values.data_ptr(),
            scale.data_ptr(),
            None if zeros is None else zeros.data_ptr(),
            outputs,
            inputs,
            bits,
            group,
            _SCALE_TYPES[scale.dtype],
            data.data_ptr(),
            data.numel(),
        )
    )
    return PackedLinear(data, outputs, inputs, bits, group)


def _matrix(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if weight.dim() != 2 or weight.dtype != dtype:
        raise UsageError(f"weights {tuple(weight.shape)} {weight.dtype}; [N, K] {dtype} is needed")
    return weight


def _group(group: int) -> int:
    if group not in GROUPS:
        raise UsageError(f"groups of {group} inputs; 32, 64 or 128")
    return group


def _rows(x: torch.Tensor, inputs: int) -> torch.Tensor:
    if x.dtype not in _FLOAT_TYPES or x.dim() == 0 or x.shape[-1] != inputs:
        raise UsageError(
            f"activations {tuple(x.shape)} {x.dtype}; [..., {inputs}] float32, bfloat16 or float16"
        )
    rows = x.reshape(-1, inputs)
    return rows if rows.stride(1) == 1 else rows.contiguous()


def _bias(bias: torch.Tensor | None, packed: PackedLinear) -> int | None:
    if bias is None:
        return None
    if bias.dtype != torch.float32 or bias.shape != (packed.outputs,) or not bias.is_contiguous():
        raise UsageError(
            f"bias {tuple(bias.shape)} {bias.dtype}; [{packed.outputs}] float32 is needed"
        )
    return bias.data_ptr()


def _result(out: torch.Tensor, rows: int, packed: PackedLinear) -> tuple[int, int, int]:
    if (
        out.dtype not in _FLOAT_TYPES
        or out.shape[-1] != packed.outputs
        or out.numel() != rows * packed.outputs
        or not (out.is_contiguous() or (out.dim() == 2 and out.stride(1) == 1))
    ):
        raise UsageError(
            f"a result {tuple(out.shape)} {out.dtype}; {rows} rows of {packed.outputs}, float32,"
            " bfloat16 or float16, are needed"
        )
    stride = out.stride(0) if out.dim() == 2 else packed.outputs
    return out.data_ptr(), _FLOAT_TYPES[out.dtype], stride
