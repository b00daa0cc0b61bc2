"""Gumbel noise as a function of (seed, position, token), and the choice it makes.

A token drawn as argmax(logit + Gumbel noise) is a draw from softmax(logits) (Gumbel 1954;
Maddison, Tarlow, Minka, "A* Sampling", NeurIPS 2014). The noise comes from a counter-based
generator, which has no state that could be lost (Salmon et al., "Parallel Random Numbers: As
Easy as 1, 2, 3", SC 2011), here the mixing function of SplitMix64 over the counter times the
golden ratio (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA
2014). Of the ways to draw with fixed noise this is among the least sensitive to the small
differences that another order of additions makes in logits: only near ties change.

vLLM 0.32's CPU operator draws from the same function of (draw, token), in float64; where it is
there it does the work, and the tests hold the two together.
"""

import torch

from tunan.engine import compat

_WORD = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_MANTISSA = 53
# Below 1 by one float32 step: the noise stays finite.
_LARGEST = 1.0 - 2.0**-24


def draw_of(seed: int, position: int) -> int:
    """The number of the draw of the token at `position` (ids before it), signed 64-bit."""
    return _signed(_mixed(_mixed(seed) + (position + 1) * _GAMMA))


def choose(logits: torch.Tensor, draws: list[int]) -> torch.Tensor:
    """Draws one token a row from softmax(logits).

    `logits`: float32 [rows, vocabulary], -inf where a token is ruled out, one finite at least;
    `draws`: one a row, of `draw_of`. Returns int64 [rows] on the device of `logits`.
    """
    operator = compat.gumbel_argmax()
    if operator is not None and logits.device.type == "cpu":
        chosen: torch.Tensor = operator(logits, torch.tensor(draws))
        return chosen
    # On the host for every device: not all of them shift 64-bit integers.
    noise = exponentials(draws, logits.shape[1]).log_().neg_()
    return (logits + noise.to(logits.device)).argmax(dim=-1)


def exponentials(draws: list[int], vocabulary: int) -> torch.Tensor:
    """Exponential noise of every token, float32 > 0 [draws, vocabulary], on the host.

    Its negated logarithm is Gumbel noise.
    """
    keys = torch.tensor([_signed(_mixed(draw)) for draw in draws])
    counters = torch.arange(1, vocabulary + 1).mul_(_signed(_GAMMA))
    bits = keys.unsqueeze(1) + counters
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        bits ^= _shifted(bits, shift)
        bits *= _signed(multiplier)
    bits ^= _shifted(bits, 31)
    # u = (upper 53 bits + 1/2) / 2**53. What decides is u near 1, where float32 is coarse: so
    # its complement is computed, which is small there.
    complement = ((1 << _MANTISSA) - 1 - _shifted(bits, 64 - _MANTISSA)).float()
    complement = complement.add_(0.5).mul_(2.0**-_MANTISSA).clamp_(max=_LARGEST)
    return complement.neg_().log1p_().neg_()


def _mixed(word: int) -> int:
    word &= _WORD
    word = ((word ^ (word >> 30)) * _MULTIPLIERS[0]) & _WORD
    word = ((word ^ (word >> 27)) * _MULTIPLIERS[1]) & _WORD
    return word ^ (word >> 31)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _shifted(words: torch.Tensor, by: int) -> torch.Tensor:
    """A logical shift right; torch's own keeps the sign."""
    return (words >> by) & ((1 << (64 - by)) - 1)
