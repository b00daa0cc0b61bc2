"""Rounds weights to the nearest of evenly spaced values, by the spacing with the least error.

For a group w of weights and a limit L, the spacing (scale) is s = r * max|w| / L rounded to
bfloat16, with r from 1 downwards in steps of 2.5 %: a smaller r clips the largest weights and
tells the others apart better. The r with the least sum of squared errors is kept; the search of
a group ends when `PATIENCE` steps in a row brought nothing.

What a group gets depends on that group alone, whatever is computed beside it, so that blocks cut
for ranks hold the same integers as the whole ones.
"""

from typing import TYPE_CHECKING

from tunan.checkpoint.quantize.scheme import WeightScheme

if TYPE_CHECKING:
    import torch

STEP = 0.025
STEPS = 28  # down to 0.3 of the largest value
PATIENCE = 4
# Weights looked at together: what the search rereads stays in a core's cache.
WINDOW_ELEMENTS = 1 << 17


def scales_of(
    weight: "torch.Tensor", scheme: WeightScheme, importance: "torch.Tensor | None" = None
) -> "torch.Tensor":
    """Scales [rows, groups] (float32, positive, exact in bfloat16) of `weight` [rows, columns].

    A group of zeros has scale 1. `weight` is floating point and finite. `importance` [columns],
    from 0 on, is what the squared error of a weight in each column is multiplied by; 1 without it.
    """
    import torch

    rows, columns = weight.shape
    found = torch.empty(rows, scheme.groups(columns))
    step = max(1, WINDOW_ELEMENTS // columns)
    for start in range(0, rows, step):
        window = weight[start : start + step].float()
        if scheme.group:  # a group a column: sums over the first dimension fill the vector units
            groups = window.reshape(-1, scheme.group).t().contiguous()
            counts = None
            if importance is not None:
                counts = importance.view(-1, scheme.group).t().repeat(1, len(window))
            own = _search(groups, counts, 0, scheme)
            found[start : start + step] = own.view(window.shape[0], -1)
        else:
            counts = None if importance is None else importance.expand_as(window)
            found[start : start + step, 0] = _search(window, counts, 1, scheme)
    return found


def round_to_scales(
    weight: "torch.Tensor", scales: "torch.Tensor", scheme: WeightScheme
) -> "torch.Tensor":
    """`weight` [rows, columns] as integers, int8: the nearest multiples of `scales`
    [rows, groups], halves to even, cut to the scheme's range."""
    import torch

    rows, columns = weight.shape
    groups = weight.float().view(rows, scales.shape[1], -1)
    steps = (groups / scales.unsqueeze(-1)).round_().clamp_(scheme.lowest, scheme.limit)
    return steps.to(torch.int8).view(rows, columns)


def restored(integers: "torch.Tensor", scales: "torch.Tensor") -> "torch.Tensor":
    """What integers [rows, columns] and scales [rows, groups] stand for, float32."""
    rows, columns = integers.shape
    groups = integers.float().view(rows, scales.shape[1], -1)
    return (groups * scales.float().unsqueeze(-1)).view(rows, columns)


def _search(
    weights: "torch.Tensor", counts: "torch.Tensor | None", along: int, scheme: WeightScheme
) -> "torch.Tensor":
    """The scale of each group; a group of `weights` lies along dimension `along`, 0 or 1.
    `counts`, of the same shape: what the squared error of each weight is multiplied by."""
    import torch

    largest = weights.abs().amax(along) / scheme.limit
    best = _in_bfloat16(largest)
    if not scheme.clipping:
        return best
    error = _squared_error(weights, counts, along, best, scheme)
    waited = torch.zeros_like(best, dtype=torch.int32)
    for step in range(1, STEPS + 1):
        at = (waited < PATIENCE).nonzero().flatten()
        if not len(at):
            break
        own, counted = weights, counts
        if len(at) != len(best):
            own = weights.index_select(1 - along, at)
            counted = None if counts is None else counts.index_select(1 - along, at)
        scale = _in_bfloat16(largest[at] * (1 - STEP * step))
        found = _squared_error(own, counted, along, scale, scheme)
        better = found < error[at]
        waited[at] = torch.where(better, 0, waited[at] + 1)
        error[at] = torch.where(better, found, error[at])
        best[at] = torch.where(better, scale, best[at])
    return best


def _squared_error(
    weights: "torch.Tensor",
    counts: "torch.Tensor | None",
    along: int,
    scale: "torch.Tensor",
    scheme: WeightScheme,
) -> "torch.Tensor":
    scale = scale.unsqueeze(along)
    steps = (weights / scale).round_().clamp_(scheme.lowest, scheme.limit)
    errors = steps.mul_(scale).sub_(weights).square_()
    return (errors if counts is None else errors.mul_(counts)).sum(along)


def _in_bfloat16(scale: "torch.Tensor") -> "torch.Tensor":
    """The nearest bfloat16 numbers, as float32; 1 where that is 0."""
    import torch

    rounded = scale.to(torch.bfloat16).float()
    return torch.where(rounded > 0, rounded, 1.0)
