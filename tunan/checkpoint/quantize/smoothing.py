"""SmoothQuant (Xiao et al. 2023, arXiv 2211.10438): factors that make inputs even.

A few inputs of a layer are far larger than the others and leave these few steps of int8. Each
input is divided by a factor and its column of the weight multiplied by it, which changes nothing
before rounding; the division is folded into what makes the input. Factors are
s = max|x|^a / max|w|^(1 - a); a is searched for each layer, by the error of its rounded output.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tunan.checkpoint.quantize.rounding import restored, round_to_scales, scales_of
from tunan.checkpoint.quantize.scheme import WeightScheme

if TYPE_CHECKING:
    import torch

EXPONENTS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
SMALLEST = 1e-5
TRIED_OUTPUTS = 512  # of a layer, that exponents are compared on
LIMIT = 127


@dataclass(frozen=True)
class Site:
    """Linear layers of a decoder layer that share an input, and what makes this input.

    `before` is a norm (a gain for each input) or a linear layer (a row for each input).
    """

    layers: tuple[str, ...]
    before: str


SITES = (
    Site(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "input_layernorm"),
    Site(("self_attn.o_proj",), "self_attn.v_proj"),
    Site(("mlp.gate_proj", "mlp.up_proj"), "post_attention_layernorm"),
    Site(("mlp.down_proj",), "mlp.up_proj"),
)


def rounded(inputs: "torch.Tensor") -> "torch.Tensor":
    """`inputs` [..., n] as int8 with a scale a row holds them."""
    scale = inputs.abs().amax(-1, keepdim=True).clamp_min(1e-12) / LIMIT
    return (inputs / scale).round() * scale


def round_first(module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """A hook that rounds what goes into a module."""
    return (rounded(inputs[0]), *inputs[1:])


def factors(
    inputs: "torch.Tensor",
    largest: "torch.Tensor",
    weight: "torch.Tensor",
    scheme: WeightScheme,
    shared: tuple[int, int] | None,
) -> "torch.Tensor | None":
    """Factors [columns] for `weight` [rows, columns]; None: none help.

    `inputs` [n, columns] are tried, `largest` [columns] is the greatest magnitude of each input.
    With `shared` (key/value heads, query heads of each) factors of heads that read the same values
    are the same.
    """
    import torch

    columns = weight.abs().amax(0).clamp_min(SMALLEST)
    weight = weight[:: -(-len(weight) // TRIED_OUTPUTS)]
    exact, scheme = inputs @ weight.T, replace(scheme, clipping=False)  # a search in each is slow
    best = _error(inputs, weight, exact, scheme)
    found: torch.Tensor | None = None
    for exponent in EXPONENTS:
        tried = largest.clamp_min(SMALLEST) ** exponent / columns ** (1 - exponent)
        if shared is not None:
            heads = tried.view(*shared, -1)
            tried = heads.amax(1, keepdim=True).expand_as(heads).reshape(-1)
        tried = tried / (tried.max() * tried.min()).sqrt()
        error = _error(inputs / tried, weight * tried, exact, scheme)
        if error < best:
            best, found = error, tried
    return found


def _error(
    inputs: "torch.Tensor", weight: "torch.Tensor", exact: "torch.Tensor", scheme: WeightScheme
) -> float:
    scales = scales_of(weight, scheme)
    kept = restored(round_to_scales(weight, scales, scheme), scales)
    return float((rounded(inputs) @ kept.T - exact).square().sum())
