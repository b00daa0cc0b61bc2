"""Mixtures of experts with their results, as native/tests/experts.cc reads them: bits that every
instruction set of every architecture has to reproduce."""

import sys
from pathlib import Path

import torch

from tests.kernels.experts import GROUPS, TYPES, Weights, mixture, routes, tokens
from tunan.kernels.moe import run_experts

# Experts, hidden and inner size, tokens, experts a token.
_SHAPES = [(1, 1, 1, 1, 1), (6, 70, 33, 5, 2), (4, 128, 96, 1, 3), (3, 96, 64, 60, 2)]


def write_vectors(path: Path) -> int:
    """Writes every form in every shape, results by the instruction set in use; says how many."""
    count = 0
    with path.open("wb") as file:
        for form in GROUPS:
            for shape in _SHAPES:
                file.write(_case(form, shape, TYPES[count % len(TYPES)]))
                count += 1
    return count


def _case(form: str, shape: tuple[int, int, int, int, int], dtype: torch.dtype) -> bytes:
    experts, hidden, inner, count, top_k = shape
    gate_up, down = mixture(form, experts, hidden, inner)
    chosen, factors = routes(count, top_k, experts)
    chosen[1::4, 0] = -1
    x = tokens(count, hidden, dtype)
    y = run_experts(x, chosen, factors, gate_up.packed, down.packed)
    head = [
        experts,
        hidden,
        inner,
        GROUPS[form],
        count,
        top_k,
        TYPES.index(dtype),
        int(down.scales.dtype == torch.float16),
    ]
    parts = [torch.tensor(head), *_plain(gate_up), *_plain(down), x, chosen, factors, y]
    return b"".join(_bytes(part) for part in parts)


def _plain(weights: Weights) -> tuple[torch.Tensor, torch.Tensor]:
    """Values as the C interface takes them: of 4 bits, 0 to 15."""
    shift = 8 if weights.packed.group else 0
    return weights.values + shift, weights.scales


def _bytes(tensor: torch.Tensor) -> bytes:
    raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    return raw + bytes(-len(raw) % 8)


if __name__ == "__main__":
    write_vectors(Path(sys.argv[1]))
