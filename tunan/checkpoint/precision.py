"""Number formats: which the converter writes, and which tensors keep their own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

ITEM_BYTES: Mapping[str, int] = {
    "BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4, "U64": 8, "I64": 8,
    "F16": 2, "BF16": 2, "F32": 4, "F64": 8,
}  # fmt: skip
FLOATS = ("F16", "BF16", "F32", "F64")

# The router's correction bias is added to scores that differ in the third decimal:
# transformers lists it in `_keep_in_fp32_modules_strict`, vLLM declares it float32, and so it
# does the norm of the lightning indexer's keys.
KEPT_SUFFIXES = ("e_score_correction_bias", "indexer.k_norm.weight", "indexer.k_norm.bias")

_TORCH_NAMES: Mapping[str, str] = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32",
    "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16",
    "F32": "float32", "F64": "float64",
}  # fmt: skip


@dataclass(frozen=True)
class Precision:
    """A number format weights are written in: its torch name, its safetensors code, and what
    the manifest calls it."""

    torch_name: str
    code: str
    manifest_name: Literal["bf16", "fp16", "fp32"]


PRECISIONS: Mapping[str, Precision] = {
    precision.torch_name: precision
    for precision in (
        Precision("bfloat16", "BF16", "bf16"),
        Precision("float16", "F16", "fp16"),
        Precision("float32", "F32", "fp32"),
    )
}


def written_dtype(name: str, stored: str, precision: Precision) -> str:
    """The safetensors code a tensor is written in: floats in `precision` unless they must
    keep their own, anything else as it is stored."""
    if stored not in FLOATS or (stored == "F32" and name.endswith(KEPT_SUFFIXES)):
        return stored
    return precision.code


def torch_dtype(code: str) -> "torch.dtype":
    """The torch type of a safetensors code."""
    import torch

    dtype: torch.dtype = getattr(torch, _TORCH_NAMES[code])
    return dtype
