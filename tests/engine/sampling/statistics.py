"""Goodness-of-fit tests: how likely counts as far from what is expected are by chance."""

import torch

# A cell whose expected count is smaller does not follow the chi-square distribution.
_FEWEST = 5.0


def fit(drawn: list[int], probabilities: torch.Tensor) -> float:
    """p of Pearson's chi-square test of `drawn` against `probabilities` [vocabulary].

    Rare tokens are taken together. 0 if a token was drawn that has no probability.
    """
    counts = torch.bincount(torch.tensor(drawn), minlength=len(probabilities)).double()
    expected = probabilities.double() * len(drawn)
    if bool((counts[expected == 0] > 0).any()):
        return 0.0
    common = expected >= _FEWEST
    counts = torch.cat([counts[common], counts[~common].sum().reshape(1)])
    expected = torch.cat([expected[common], expected[~common].sum().reshape(1)])
    cells = expected > 0
    return _tail(counts[cells], expected[cells], int(cells.sum()) - 1)


def independence(first: list[int], second: list[int], kinds: int) -> float:
    """p of the chi-square test that pairs of draws, each below `kinds`, are independent."""
    pairs = torch.tensor(first) * kinds + torch.tensor(second)
    counts = torch.bincount(pairs, minlength=kinds * kinds).double().reshape(kinds, kinds)
    expected = counts.sum(1, keepdim=True) * counts.sum(0, keepdim=True) / counts.sum()
    return _tail(counts, expected, (kinds - 1) ** 2)


def _tail(counts: torch.Tensor, expected: torch.Tensor, freedom: int) -> float:
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedoms = torch.tensor(freedom / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedoms, statistic / 2))
