"""GPTQ (Frantar et al. 2022, arXiv 2210.17323): columns are rounded one after another, and what
rounding one does to the layer's output is made up for in those that follow.

Scales are chosen first, an error in a column counting as much as its input is large; then columns
go by falling size of their inputs, whichever group they are of, so that groups stay what an engine
reads and the columns that matter are rounded while there are others left to make up for it.
"""

from typing import TYPE_CHECKING

from tunan.checkpoint.quantize.rounding import scales_of
from tunan.checkpoint.quantize.scheme import WeightScheme

if TYPE_CHECKING:
    import torch

DAMPING = 0.01  # of the mean of the Hessian's diagonal, added to it
BLOCK_COLUMNS = 128  # whose errors are handed on together


def gptq(
    weight: "torch.Tensor", hessian: "torch.Tensor", scheme: WeightScheme
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Integers int8 [rows, columns] and scales float32 [rows, groups] of `weight` [rows, columns].

    `hessian` [columns, columns] float32 is the mean of x x^T over inputs x of the layer.
    """
    import torch

    columns = weight.shape[1]
    importance = hessian.diagonal()
    scales = scales_of(weight, scheme, importance)
    order = importance.argsort(descending=True, stable=True)
    upper = _inverse_factor(hessian[order][:, order])
    left = weight.float()[:, order]
    steps = scales.repeat_interleave(scheme.group or columns, 1)[:, order]
    ordered = torch.empty(weight.shape, dtype=torch.int8)
    for start in range(0, columns, BLOCK_COLUMNS):
        stop = min(start + BLOCK_COLUMNS, columns)
        block = left[:, start:stop].clone()
        errors = torch.empty_like(block)
        for at in range(start, stop):
            own, scale = at - start, steps[:, at]
            found = (block[:, own] / scale).round_().clamp_(scheme.lowest, scheme.limit)
            ordered[:, at] = found.to(torch.int8)
            errors[:, own] = (block[:, own] - found * scale) / upper[at, at]
            block[:, own:] -= errors[:, own : own + 1] * upper[at, at:stop]
        left[:, stop:] -= errors @ upper[start:stop, stop:]
    integers = torch.empty_like(ordered)
    integers[:, order] = ordered
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
