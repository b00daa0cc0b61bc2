"""Whether two engines say the same, where the last bits of what they add up may differ."""

from typing import Any

# Between log probabilities, which differ by as much from one rounding to the next.
TIE = 0.25


def agreed(answer: dict[str, Any], expected: dict[str, Any]) -> int:
    """How many tokens are the same, of equal chances, before the first that could be either.

    Norms, routing and products in latent space are sums in another order, which rounds to another
    int8 now and then: where the two best tokens are nearly a tie, either may come.
    """
    same = 0
    for ours, theirs in zip(answer["chances"], expected["chances"], strict=True):
        for mine, its in zip(map(dict, ours), map(dict, theirs), strict=True):
            best = max(its, key=its.__getitem__)
            chosen = max(mine, key=mine.__getitem__)
            assert chosen in its, "neither of the two best"
            assert its[best] - its[chosen] < TIE
            if chosen != best:
                break
            assert abs(mine[chosen] - its[best]) < TIE
            same += 1
    return same
