"""GPTQ (Frantar et al. 2022, arXiv 2210.17323): columns are rounded one after another, and what
rounding one does to the layer's output is made up for in those that follow.

Columns keep their order (no activation ordering), so that groups stay what an engine reads.
"""

from typing import TYPE_CHECKING

from tunan.checkpoint.quantize.rounding import scales_of
from tunan.checkpoint.quantize.scheme import WeightScheme

if TYPE_CHECKING:
    import torch

DAMPING = 0.01  # of the mean of the Hessian's diagonal, added to it
BLOCK_COLUMNS = 128  # a multiple of every group size


def gptq(
    weight: "torch.Tensor", hessian: "torch.Tensor", scheme: WeightScheme
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Integers int8 [rows, columns] and scales float32 [rows, groups] of `weight` [rows, columns].

    `hessian` [columns, columns] float32 is the mean of x x^T over inputs x of the layer. A group's
    scale is chosen when its first column is reached, among those `scales_of` tries.
    """
    import torch

    left, (rows, columns) = weight.float().clone(), weight.shape
    upper = _inverse_factor(hessian)
    group = scheme.group or columns
    scales = torch.empty(rows, columns // group)
    if not scheme.group:
        scales[:] = scales_of(left, scheme)
    integers = torch.empty(rows, columns, dtype=torch.int8)
    for start in range(0, columns, BLOCK_COLUMNS):
        stop = min(start + BLOCK_COLUMNS, columns)
        block = left[:, start:stop].clone()
        errors = torch.empty_like(block)
        for at in range(start, stop):
            own = at - start
            if scheme.group and at % group == 0:
                chosen = scales_of(block[:, own : own + group].contiguous(), scheme)
                scales[:, at // group] = chosen[:, 0]
            scale = scales[:, at // group]
            steps = (block[:, own] / scale).round_().clamp_(scheme.lowest, scheme.limit)
            integers[:, at] = steps.to(torch.int8)
            errors[:, own] = (block[:, own] - steps * scale) / upper[at, at]
            block[:, own:] -= errors[:, own : own + 1] * upper[at, at:stop]
        left[:, stop:] -= errors @ upper[start:stop, stop:]
    return integers, scales


def _inverse_factor(hessian: "torch.Tensor") -> "torch.Tensor":
    """The upper Cholesky factor of the inverse of the damped Hessian, [columns, columns]."""
    import torch

    damped = hessian.double().clone()
    diagonal = damped.diagonal()
    diagonal += DAMPING * diagonal.mean().clamp_min(1e-12)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    upper: torch.Tensor = torch.linalg.cholesky(inverse, upper=True).float()
    return upper
