"""Whether two engines say the same, where the last bits of what they add up may differ."""

from typing import Any

# Between log probabilities, which differ by up to 0.09 from one rounding to the next.
TIE = 0.125


def agreed(
    answer: dict[str, Any], expected: dict[str, Any], *, rerouted: int = 0, tie: float = TIE
) -> int:
    """How many tokens are the same, of equal chances, before the first that could be either.

    What differs are sums in another order (test_deepseek.py says which), which round to another
    int8 now and then: where the best tokens are nearly a tie, either may come. Where two experts
    are, another one may be chosen, and everything after that differs by more: at most `rerouted`
    answers may part so.
    """
    same = parted = 0
    for ours, theirs in zip(answer["chances"], expected["chances"], strict=True):
        for mine, its in zip(map(dict, ours), map(dict, theirs), strict=True):
            best = max(its, key=its.__getitem__)
            chosen = max(mine, key=mine.__getitem__)
            if not _nearly_equal(mine, its, chosen, best, tie):
                parted += 1
                break
            if chosen != best:
                break
            same += 1
    assert parted <= rerouted, f"{parted} answers differ by more than a tie"
    return same


def _nearly_equal(
    mine: dict[Any, float], its: dict[Any, float], chosen: Any, best: Any, tie: float
) -> bool:
    """Whether what is chosen is nearly the best there too, of nearly the same chance."""
    if chosen not in its or its[best] - its[chosen] >= tie:
        return False
    return abs(mine[chosen] - its[chosen]) < tie
