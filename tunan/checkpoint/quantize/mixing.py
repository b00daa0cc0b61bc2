"""Mixed precision: which layers are held in int8 where the rest is int4.

What int4 costs differs by two orders of magnitude from layer to layer. It is estimated from one
pass over a text, forth and back: to second order the loss grows by half of the mean of (g . e)^2,
g being the loss's gradient by a layer's output and e what rounding changes in this output (the
empirical Fisher information; as in Dong et al. 2019, arXiv 1911.03852, layers are weighed by
their curvature). Outputs are taken for independent, and so are the rounding errors of a row but
for what GPTQ makes up for, which is much where inputs go together: that leaves the sum over o, c
of mean g_o^2 * (change of w_oc)^2 * h_c, h_c being what is left of the mean square of input c
(`gptq.what_is_left`). Layers that save the most loss for a bit get int8 until the bits are spent.

Layers that engines fuse into one (q, k and v; gate and up) are chosen together.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tunan.checkpoint.quantize.gptq import what_is_left
from tunan.checkpoint.quantize.rounding import restored, round_to_scales, scales_of
from tunan.checkpoint.quantize.running import Running
from tunan.checkpoint.quantize.scheme import WeightScheme
from tunan.checkpoint.quantize.smoothing import SITES

if TYPE_CHECKING:
    import torch

MOST_TOKENS = 2048


@dataclass(frozen=True)
class Candidate:
    """Layers that share a scheme: their tensors, their `weights`, the bits that these take in the
    usual scheme and in the finer one, what the usual one adds to the loss of a token, in nats."""

    tensors: tuple[str, ...]
    weights: int
    usual_bits: float
    finer_bits: float
    loss: float


def finer_tensors(
    running: Running, text: str, scheme: WeightScheme, average_bits: float
) -> frozenset[str]:
    """The weights to hold in `scheme.finer`, so that all quantised weights of a Llama or Qwen2
    take at most `average_bits` each, scales included. Gradients by the model's parameters are
    off afterwards."""
    inputs, gradients = _watch(running, text)
    found = candidates(running.model.model.layers, scheme, inputs, gradients)
    return choose(found, average_bits)


def choose(found: Iterable[Candidate], average_bits: float) -> frozenset[str]:
    """The tensors of the candidates that save the most loss for a bit."""
    known = list(found)
    left = sum(each.weights * average_bits - each.usual_bits for each in known)
    chosen: set[str] = set()
    for each in sorted(known, key=lambda each: -each.loss / (each.finer_bits - each.usual_bits)):
        more = each.finer_bits - each.usual_bits
        if more <= left:
            left -= more
            chosen |= set(each.tensors)
    return frozenset(chosen)


def candidates(
    layers: Iterable[Any],
    scheme: WeightScheme,
    inputs: "Mapping[str, torch.Tensor]",
    gradients: "Mapping[str, torch.Tensor]",
) -> list[Candidate]:
    """What each site of the decoder layers costs; by layer's name: `inputs` [columns], what an
    error in each column counts, of the first layer of a site; `gradients` [rows], mean squares of
    the loss's gradient by its outputs."""
    quick, found = replace(scheme, clipping=False), []
    for index, layer in enumerate(layers):
        for site in SITES:
            names = [f"model.layers.{index}.{name}" for name in site.layers]
            weights = [layer.get_submodule(name).weight.detach() for name in site.layers]
            elements = sum(weight.numel() for weight in weights)
            columns = weights[0].shape[1]
            losses = (
                _loss(weight, quick, inputs[names[0]], gradients[name])
                for name, weight in zip(names, weights, strict=True)
            )
            found.append(
                Candidate(
                    tuple(f"{name}.weight" for name in names),
                    elements,
                    elements * scheme.stored_bits(columns),
                    elements * scheme.finer.stored_bits(columns),
                    sum(losses),
                )
            )
    return found


def _loss(
    weight: "torch.Tensor", scheme: WeightScheme, inputs: "torch.Tensor", gradients: "torch.Tensor"
) -> float:
    scales = scales_of(weight, scheme)
    change = restored(round_to_scales(weight, scales, scheme), scales) - weight.float()
    return float(gradients @ change.square() @ inputs) / 2


class _Watched:
    """What a pass shows of a layer: its inputs, if they are kept, and the squares of the loss's
    gradient by its outputs."""

    def __init__(self, *, keeps_inputs: bool) -> None:
        self.inputs: list[torch.Tensor] = []
        self.gradients: Any = 0
        self._keeps_inputs = keeps_inputs

    def watch(self, _: Any, inputs: "tuple[torch.Tensor, ...]", output: "torch.Tensor") -> None:
        """A forward hook."""
        import torch

        if self._keeps_inputs:  # of many layers at once: in half the memory
            self.inputs.append(inputs[0].detach().flatten(0, -2).to(torch.bfloat16))
        output.register_hook(self._add)  # type: ignore[no-untyped-call]

    def _add(self, gradient: "torch.Tensor") -> None:
        self.gradients = self.gradients + gradient.flatten(0, -2).float().square().sum(0)

    def counts(self) -> "torch.Tensor":
        """What an error in each column counts, [columns]."""
        import torch

        rows = torch.cat(self.inputs).float()
        return what_is_left(rows.T @ rows / len(rows), len(rows))


def _watch(
    running: Running, text: str
) -> "tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]":
    """See `candidates`."""
    import torch

    model, watched = running.model.requires_grad_(requires_grad=False), dict[str, _Watched]()
    hooks = []
    for index, layer in enumerate(model.model.layers):
        for name, first in ((name, site.layers[0]) for site in SITES for name in site.layers):
            own = watched[f"model.layers.{index}.{name}"] = _Watched(keeps_inputs=name == first)
            hooks.append(layer.get_submodule(name).register_forward_hook(own.watch))
    tokens = 0
    with torch.enable_grad():
        for window in running.windows(text, MOST_TOKENS):
            embedded = model.get_input_embeddings()(window).requires_grad_()
            logits = model(inputs_embeds=embedded, use_cache=False).logits[0, :-1].float()
            loss = torch.nn.functional.cross_entropy(logits, window[0, 1:], reduction="sum")
            loss.backward()  # type: ignore[no-untyped-call]
            tokens += window.shape[1]
    for hook in hooks:
        hook.remove()
    inputs = {name: own.counts() for name, own in watched.items() if own.inputs}
    return inputs, {name: own.gradients / tokens for name, own in watched.items()}
