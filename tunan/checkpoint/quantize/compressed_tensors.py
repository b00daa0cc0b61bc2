"""The `quantization_config` of config.json, in the format compressed-tensors.

vLLM and vllm-ascend read it without any option. Source: compressed-tensors 0.17,
`quantization/quant_config.py`, and the readers in vLLM 0.32
(`layers/quantization/compressed_tensors/`) and vllm-ascend 0.23
(`quantization/compressed_tensors_config.py`).
"""

from collections.abc import Mapping
from typing import Any

from tunan.checkpoint.quantize.scheme import WeightScheme
from tunan.checkpoint.quantize.which_layers import ignored

QUANT_METHOD = "compressed-tensors"
SCALE_SUFFIX = "_scale"  # X.weight_scale beside X.weight


def quantization_config(config: Mapping[str, Any], scheme: WeightScheme) -> dict[str, Any]:
    """How `config`'s model is quantised: `scheme` for weights, int8 for each token's input."""
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
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": activations,
        "output_activations": None,
    }
    return {
        "quant_method": QUANT_METHOD,
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": list(ignored(config)),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }
