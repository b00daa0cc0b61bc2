"""GPTQ (Frantar et al. 2022, arXiv 2210.17323): columns are rounded one after another, and what
rounding one does to the layer's output is made up for in those that follow.

Scales are chosen first, an error in a column counting as much as its input is large; then columns
go by falling size of their inputs, whichever group they are of, so that groups stay what an engine
reads and the columns that matter are rounded while there are others left to make up for it.

How inputs go together is known from a text only, the less the fewer tokens it has for each column:
what GPTQ makes up for by chance makes other texts worse, until it is worse than rounding to
nearest. So the Hessian's diagonal counts 1 + `SHRINKAGE` * columns / tokens times (shrunk as
covariances are, Ledoit and Wolf 2004).
"""

from typing import TYPE_CHECKING

from tunan.checkpoint.quantize.rounding import scales_of
from tunan.checkpoint.quantize.scheme import WeightScheme

if TYPE_CHECKING:
    import torch

SHRINKAGE = 2.0
DAMPING = 1e-4  # of the mean of the Hessian's diagonal, added to it: inputs may always be zero
BLOCK_COLUMNS = 64  # whose errors are handed on together


def gptq(
    weight: "torch.Tensor", hessian: "torch.Tensor", tokens: int, scheme: WeightScheme
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Integers int8 [rows, columns] and scales float32 [rows, groups] of `weight` [rows, columns].

    `hessian` [columns, columns] float32 is the mean of x x^T over `tokens` inputs x of the layer.
    """
    import torch

    columns = weight.shape[1]
    importance = hessian.diagonal()
    scales = scales_of(weight, scheme, importance)
    order = importance.argsort(descending=True, stable=True)
    upper = _inverse_factor(hessian[order][:, order], _shrinkage(columns, tokens))
    # A column a row: what is read and changed together then lies together.
    left = weight.float().t()[order].contiguous()
    steps = scales.repeat_interleave(scheme.group or columns, 1).t()[order].contiguous()
    ordered = torch.empty(left.shape, dtype=torch.int8)
    for start in range(0, columns, BLOCK_COLUMNS):
        stop = min(start + BLOCK_COLUMNS, columns)
        block, errors = left[start:stop], torch.empty_like(left[start:stop])
        for own in range(stop - start):
            at, scale = start + own, steps[start + own]
            found = (block[own] / scale).round_().clamp_(scheme.lowest, scheme.limit)
            ordered[at] = found.to(torch.int8)
            errors[own] = (block[own] - found.mul_(scale)) / upper[at, at]
            block[own:].addr_(upper[at, at:stop], errors[own], alpha=-1)
        left[stop:].addmm_(upper[start:stop, stop:].t(), errors, alpha=-1)
    integers = torch.empty_like(ordered)
    integers[order] = ordered
    return integers.t().contiguous(), scales


def what_is_left(hessian: "torch.Tensor", tokens: int) -> "torch.Tensor":
    """[columns]: what an error in each column of a weight counts once later ones have made up for
    it, at most the mean square of its input. Arguments as in `gptq`."""
    import torch

    shrinkage = _shrinkage(len(hessian), tokens)
    order = hessian.diagonal().argsort(descending=True, stable=True)
    upper = _inverse_factor(hessian[order][:, order], shrinkage)
    left = torch.empty(len(hessian))
    left[order] = upper.diagonal() ** -2 / (1 + shrinkage)
    return left


def _shrinkage(columns: int, tokens: int) -> float:
    return SHRINKAGE * columns / tokens


def _inverse_factor(hessian: "torch.Tensor", shrinkage: float) -> "torch.Tensor":
    """The upper Cholesky factor of the inverse of the shrunk Hessian, [columns, columns]."""
    import torch

    damped = hessian.double().clone()
    diagonal = damped.diagonal()
    diagonal *= 1 + shrinkage
    diagonal += DAMPING * diagonal.mean().clamp_min(1e-12)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    upper: torch.Tensor = torch.linalg.cholesky(inverse, upper=True).float()
    return upper
