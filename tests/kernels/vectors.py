"""Linear layers with their results, as native/tests/vectors.cc reads them: bits that every
instruction set of every architecture has to reproduce."""

import sys
from pathlib import Path

import torch

from tests.kernels.reference import FORMS, Weights, weights
from tunan.kernels.linear import linear

_TYPES = [torch.float32, torch.bfloat16, torch.float16]
_SHAPES = [(1, 1, 1), (33, 70, 5), (96, 256, 1), (64, 129, 13), (31, 320, 26)]


def write_vectors(path: Path) -> int:
    """Writes every form in every shape, results by the instruction set in use; says how many."""
    random = torch.Generator().manual_seed(11)
    count = 0
    with path.open("wb") as file:
        for form in FORMS:
            for outputs, inputs, rows in _SHAPES:
                x_type, y_type = _TYPES[count % 3], _TYPES[count // 3 % 3]
                layer = weights(form, outputs, inputs, seed=count)
                x = (torch.randn(rows, inputs, generator=random) * 3).to(x_type)
                bias = torch.randn(outputs, generator=random) if count % 2 else None
                y = linear(x, layer.pack(), bias, torch.empty(rows, outputs, dtype=y_type))
                file.write(_case(layer, x, bias, y))
                count += 1
    return count


def _case(layer: Weights, x: torch.Tensor, bias: torch.Tensor | None, y: torch.Tensor) -> bytes:
    outputs, inputs = layer.values.shape
    values = layer.values
    if layer.zeros is not None:
        group = layer.group
        values = values + layer.zeros.long().repeat_interleave(group, dim=1)[:, :inputs]
    elif layer.bits == 4:
        values = values + 8
    head = [
        outputs,
        inputs,
        layer.bits,
        layer.group,
        int(layer.scales.dtype == torch.float16),
        int(layer.zeros is not None),
        x.shape[0],
        _TYPES.index(x.dtype),
        _TYPES.index(y.dtype),
        int(bias is not None),
    ]
    parts = [torch.tensor(head), values.to(torch.int8), layer.scales, layer.zeros, x, bias, y]
    return b"".join(_bytes(part) for part in parts if part is not None)


def _bytes(tensor: torch.Tensor) -> bytes:
    raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    return raw + bytes(-len(raw) % 8)


if __name__ == "__main__":
    write_vectors(Path(sys.argv[1]))
