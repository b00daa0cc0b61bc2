"""Fits integers to how a model is used: it runs on a text, layer by layer, and each layer is
smoothed (`smoothing`) and rounded (`gptq`) on what the layers before it, already rounded, give it.

The whole model is in memory in floating point; beside it are the states of the text's tokens and
a Hessian of one layer, and the integers.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tunan.checkpoint.architectures import architecture_of, key_value_heads, number
from tunan.checkpoint.quantize.fitted_source import Fitted, FittedSource
from tunan.checkpoint.quantize.gptq import gptq
from tunan.checkpoint.quantize.kv_cache import Calibration
from tunan.checkpoint.quantize.mixing import finer_tensors
from tunan.checkpoint.quantize.rotation import Rotation
from tunan.checkpoint.quantize.rounding import restored
from tunan.checkpoint.quantize.running import run_source
from tunan.checkpoint.quantize.scheme import WeightScheme
from tunan.checkpoint.quantize.smoothing import SITES, Site, factors, round_first, rounded
from tunan.checkpoint.source import Source
from tunan.errors import CheckFailedError

if TYPE_CHECKING:
    import torch

MOST_TOKENS = 8192
TRIED_INPUTS = 1024  # that smoothing is searched on


def can_fit(config: Mapping[str, Any]) -> bool:
    """Whether there is a way to fit a model of this architecture: Llama's and Qwen2's kind."""
    architecture = architecture_of(config)
    return architecture.attention == "gqa" and not architecture.experts


def fit(
    source: Source,
    scheme: WeightScheme,
    calibration: Calibration,
    *,
    rotate: bool = False,
    average_bits: float | None = None,
) -> FittedSource:
    """`source` with its weights smoothed, with `rotate` turned before, and their integers found;
    with `average_bits` the layers that matter most in `scheme.finer` (`mixing`).

    Raises what `run_source` raises, CheckFailedError where the model gives no finite numbers.
    """
    import torch

    running = run_source(source)
    heads = number(source.config, "num_attention_heads")
    shared = (key_value_heads(source.config), heads // key_value_heads(source.config))
    fitted = Fitted(rotation=Rotation.of(source.config) if rotate else None)
    if fitted.rotation is not None:
        fitted.rotation.apply(running.model)
    if average_bits is not None:
        with _quick_products():
            fitted.finer = finer_tensors(running, calibration.text, scheme, average_bits)
    with torch.inference_mode(), _quick_products():
        windows = list(running.windows(calibration.text, MOST_TOKENS))
        states = _Layers(running.model, windows)
        for index, layer in enumerate(running.model.model.layers):
            own = _Layer(layer, f"model.layers.{index}.", scheme, fitted)
            inputs = states.inputs_of(layer, *(site.layers[0] for site in SITES))
            for site, found in zip(SITES, inputs, strict=True):
                heads_share = shared if site.before == "self_attn.v_proj" else None
                own.smooth(torch.cat(found), site, heads_share)
            del inputs
            for site in SITES:
                own.round(states, site)
            states.advance(layer)
    return FittedSource(source, fitted)


@contextmanager
def _quick_products() -> Iterator[None]:
    """Products of float32 matrices may read bfloat16, where the processor has it: what is found
    of a text is known less exactly than that."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class _StopError(Exception):
    """Ends a forward pass at the layer whose input was wanted."""


class _Layers:
    """The states of all windows before the layer at hand, and what a layer is called with."""

    def __init__(self, model: Any, windows: "list[torch.Tensor]") -> None:
        self._calls: list[tuple[Any, dict[str, Any]]] = []

        def keep(_: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            self._calls.append((inputs[0], named))
            raise _StopError

        hook = model.model.layers[0].register_forward_pre_hook(keep, with_kwargs=True)
        for window in windows:
            try:
                model(window, use_cache=False)
            except _StopError:
                continue
        hook.remove()

    def inputs_of(self, layer: Any, *names: str) -> "list[list[torch.Tensor]]":
        """What goes into linear layers of `layer`, named in the order in which they run: of each,
        [tokens, columns] a window."""
        found: list[list[torch.Tensor]] = [[] for _ in names]

        def keep(_: Any, inputs: tuple[Any, ...], at: int) -> None:
            found[at].append(inputs[0].flatten(0, -2).float())
            if at == len(names) - 1:
                raise _StopError

        hooks = [
            layer.get_submodule(name).register_forward_pre_hook(partial(keep, at=at))
            for at, name in enumerate(names)
        ]
        for states, named in self._calls:
            try:
                layer(states, **named)
            except _StopError:
                continue
        for hook in hooks:
            hook.remove()
        return found

    def advance(self, layer: Any) -> None:
        """Runs `layer`, the inputs of its linear layers rounded as an engine rounds them."""
        linear = [layer.get_submodule(name) for site in SITES for name in site.layers]
        hooks = [one.register_forward_pre_hook(round_first) for one in linear]
        for at, (states, named) in enumerate(self._calls):
            result = layer(states, **named)
            self._calls[at] = (result[0] if isinstance(result, tuple) else result, named)
        for hook in hooks:
            hook.remove()


@dataclass(frozen=True)
class _Layer:
    """A decoder layer of the running model, whose weights are changed in place."""

    module: Any
    prefix: str
    scheme: WeightScheme
    fitted: Fitted

    def smooth(self, inputs: "torch.Tensor", site: Site, shared: tuple[int, int] | None) -> None:
        """Finds factors for the inputs [tokens, columns] of a site, folds them into both sides."""
        import torch

        if not torch.isfinite(inputs).all():
            name = self.prefix + site.layers[0]
            raise CheckFailedError(
                f"{name}: the model gives values that are no finite numbers; check its weights, "
                "or quantise with --method nearest"
            )
        after = [self.module.get_submodule(name).weight for name in site.layers]
        weight = torch.cat([one.float() for one in after])
        chosen = inputs[:: max(1, len(inputs) // TRIED_INPUTS)]
        found = factors(chosen, inputs.abs().amax(0), weight, self._scheme_of(site), shared)
        if found is None:
            return
        found = self._divide(site.before, found, shared)
        for name, one in zip(site.layers, after, strict=True):
            one.mul_(found)
            self.fitted.columns[f"{self.prefix}{name}.weight"] = found

    def _divide(
        self, before: str, found: "torch.Tensor", shared: tuple[int, int] | None
    ) -> "torch.Tensor":
        """Divides what makes the input by factors; returns them as the other side has to have
        them: a norm's gain is written in bfloat16, and what that rounds off is made up for."""
        import torch

        made, name = self.module.get_submodule(before), f"{self.prefix}{before}"
        if before.endswith("norm"):
            gain = made.weight.float()
            written = (gain / found).to(torch.bfloat16).float()
            found = torch.where(written != 0, gain / written, 1.0)
            found = torch.where(found != 0, found, 1.0)
        divided = found if shared is None else found.view(*shared, -1)[:, 0].reshape(-1)
        shape = (-1,) if made.weight.dim() == 1 else (-1, 1)
        made.weight.div_(divided.view(shape))
        self.fitted.rows[f"{name}.weight"] = 1 / divided
        if getattr(made, "bias", None) is not None:
            made.bias.div_(divided)
            self.fitted.rows[f"{name}.bias"] = 1 / divided
        return found

    def _scheme_of(self, site: Site) -> WeightScheme:
        """Layers of a site share a scheme, as they are fused into one."""
        finer = f"{self.prefix}{site.layers[0]}.weight" in self.fitted.finer
        return self.scheme.finer if finer else self.scheme

    def round(self, states: _Layers, site: Site) -> None:
        """Rounds the weights of a site on the inputs that it has now."""
        import torch

        (found,) = states.inputs_of(self.module, site.layers[0])
        inputs = [rounded(window) for window in found]
        columns = inputs[0].shape[1]
        hessian = torch.zeros(columns, columns)
        for window in inputs:
            hessian.addmm_(window.T, window)
        tokens = sum(len(window) for window in inputs)
        weights = [self.module.get_submodule(name).weight for name in site.layers]
        whole = torch.cat([weight.float() for weight in weights])
        integers, scales = gptq(whole, hessian / tokens, tokens, self._scheme_of(site))
        start = 0
        for name, weight in zip(site.layers, weights, strict=True):
            own = slice(start, start + len(weight))
            weight.copy_(restored(integers[own], scales[own]))
            self.fitted.integers[f"{self.prefix}{name}.weight"] = integers[own], scales[own]
            start = own.stop
