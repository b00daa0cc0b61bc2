"""The `quantization_config` of config.json, in the format compressed-tensors.

vLLM and vllm-ascend read it without any option. Source: compressed-tensors 0.17,
`quantization/quant_config.py`, and the readers in vLLM 0.32
(`layers/quantization/compressed_tensors/`) and vllm-ascend 0.23
(`quantization/compressed_tensors_config.py`).
"""

from collections.abc import Collection, Mapping
from typing import Any

from tunan.checkpoint.architectures import layer_of
from tunan.checkpoint.quantize.scheme import WeightScheme
from tunan.checkpoint.quantize.which_layers import ignored

QUANT_METHOD = "compressed-tensors"
SCALE_SUFFIX = "_scale"  # X.weight_scale beside X.weight


def quantization_config(
    config: Mapping[str, Any], scheme: WeightScheme, finer: Collection[str] = ()
) -> dict[str, Any]:
    """How `config`'s model is quantised: `scheme` for weights, its `finer` for the tensors of
    these names, int8 for each token's input.

    Layers of the second group are named one by one: readers look for a layer's name in all
    groups before they look for its kind, and take a fused layer for one of a group that names all
    of its parts.
    """
    groups = [_group(["Linear"], scheme)]
    if finer:
        groups.append(_group(list(finer_layers(finer)), scheme.finer))
    return {
        "quant_method": QUANT_METHOD,
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {f"group_{at}": group for at, group in enumerate(groups)},
        "ignore": list(ignored(config)),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def finer_layers(finer: Collection[str]) -> tuple[str, ...]:
    """The layers whose weights have these names, in the order of the model."""
    return tuple(
        sorted(
            (name.removesuffix(".weight") for name in finer), key=lambda n: (layer_of(n) or 0, n)
        )
    )


def _group(targets: list[str], scheme: WeightScheme) -> dict[str, Any]:
    weights = {
        "num_bits": scheme.bits,
        "type": "int",
        "symmetric": True,
        "strategy": "group" if scheme.group else "channel",
        "group_size": scheme.group,
        "dynamic": False,
        "observer": "mse" if scheme.clipping else "minmax",
    }
    activations = {
        "num_bits": 8,
        "type": "int",
        "symmetric": True,
        "strategy": "token",
        "group_size": None,
        "dynamic": True,
        "observer": None,
    }
    return {
        "targets": targets,
        "weights": weights,
        "input_activations": activations,
        "output_activations": None,
    }
