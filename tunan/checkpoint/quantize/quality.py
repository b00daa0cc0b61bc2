"""What quantising cost: the error of every weight, for the manifest and the screen."""

from collections.abc import Iterable, Mapping
from typing import Any

from tunan.checkpoint.blocks import Written
from tunan.checkpoint.manifest import LayerError, Quantization
from tunan.checkpoint.quantize.compressed_tensors import finer_layers
from tunan.checkpoint.quantize.scheme import Quantisation
from tunan.checkpoint.quantize.which_layers import ignored

WORST = 10


def quantization_of(
    config: Mapping[str, Any], quantisation: Quantisation | None, written: Iterable[Written]
) -> Quantization | None:
    """The manifest's account of a quantised checkpoint; None if it is not."""
    if quantisation is None:
        return None
    errors = {name: error for block in written for name, error in block.errors.items()}
    worst = sorted(errors.items(), key=lambda item: (-item[1], item[0]))[:WORST]
    mean = sum(errors.values()) / max(1, len(errors))
    return Quantization(
        scheme=quantisation.name,
        weights=described(quantisation),
        activations="int8, symmetric, one scale a token, found while the model runs",
        quantised_weights=len(errors),
        ignored=ignored(config),
        mean_relative_error=float(f"{mean:.6g}"),
        worst_weights=tuple(LayerError(weight=n, relative_error=e) for n, e in worst),
        average_bits=quantisation.average_bits,
        int8_layers=finer_layers(quantisation.finer),
    )


def described(quantisation: Quantisation) -> str:
    """A scheme in words, and the method: fitted on a text of this name, or to nearest."""
    scheme, text = quantisation.weights, quantisation.fitted_on
    each = f"group of {scheme.group} inputs" if scheme.group else "output channel"
    how = "scale of least squared error" if scheme.clipping else "scale of the largest value"
    method = f"smoothed, rounded by GPTQ on {text}" if text else "rounded to nearest"
    turned = "rotated, " if quantisation.rotated else ""
    count, bits = len(quantisation.finer), quantisation.average_bits
    mixed = "" if bits is None else f", {count} layers in int8, up to {bits:g} bits a weight"
    return f"int{scheme.bits}, symmetric, one scale for each {each}{mixed}, {turned}{method}, {how}"
