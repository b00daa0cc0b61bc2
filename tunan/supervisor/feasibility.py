"""What a checkpoint's config.json rules out on a target, said before anything starts.

One check for every target, for `tunan serve` and for the commands it prints. What is not there to
be read is not judged: the checkpoint need not be on the machine that prints a command.
"""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunan.config import Deployment
from tunan.config.deployment import Parallel
from tunan.errors import UsageError

_FP8_METHODS = ("fp8", "fbgemm_fp8", "deepseek_v4_fp8")


def refuse_impossible(deployment: Deployment, target: str) -> None:
    """Raises `UsageError` for a model that `target` cannot run, or cannot split as asked."""
    path = deployment.model.path
    config = _config(path)
    text = config.get("text_config")
    model = text if isinstance(text, dict) else config
    if target == "ascend310p" and model.get("kv_lora_rank"):
        raise UsageError(
            f"{path}: ascend310p has no multi-head latent attention (DeepSeek-V2, V3, R1); "
            "use --target ascend910b or ascend910c"
        )
    if target == "cpu" and _is_modelslim(path):
        raise UsageError(
            f"{path}: its quant_model_description.json (ModelSlim, or an int8 cache for Ascend) is "
            "read by vllm-ascend alone; for a CPU convert the source again, without --kv int8"
        )
    if target != "cpu" and _is_fp8(config) and not _is_modelslim(path):
        family = next((f for f in ("ascend910c", "ascend310p") if f == target), "ascend910b")
        raise UsageError(
            f"{path}: FP8 weights have no kernels on Ascend A2, A3 and 310P; convert them first: "
            f"tunan convert {shlex.quote(str(path))} OUT --target {family}"
        )
    _refuse_split(model, deployment.parallel, path)
    _refuse_split_of_groups(config, model, deployment.parallel.tensor, path)


def _refuse_split_of_groups(
    config: Mapping[str, Any], model: Mapping[str, Any], ranks: int, path: Path
) -> None:
    """Weights with a scale for a group of inputs: a rank's inputs have to be whole groups."""
    group = _group_size(config)
    for name, inputs in _split_inputs(model).items():
        if group and inputs and inputs % (ranks * group):
            heads, kv_heads = _count(model, "num_attention_heads"), _key_value_heads(model)
            possible = [
                degree
                for degree in _degrees(heads, kv_heads)
                if not any(size % (degree * group) for size in _split_inputs(model).values())
            ]
            raise UsageError(
                f"parallel.tensor: the {inputs} inputs of {name} of {path} cannot be split over "
                f"{ranks} ranks in whole groups of {group} (int4 scales); use {_listed(possible)}, "
                "or quantize in smaller groups"
            )


def _group_size(config: Mapping[str, Any]) -> int:
    """The largest group of inputs that share a scale; 0: none do."""
    return max(
        (_count(weights, "group_size") for weights in _weight_schemes(config)),
        default=0,
    )


def _split_inputs(model: Mapping[str, Any]) -> dict[str, int]:
    """Inputs of the layers whose inputs tensor parallelism splits; 0: config.json does not say."""
    heads = _count(model, "num_attention_heads")
    head_size = _count(model, "v_head_dim") or _count(model, "head_dim")
    return {
        "o_proj": heads * head_size if head_size else _count(model, "hidden_size"),
        "down_proj": _count(model, "intermediate_size"),
        "the experts' down_proj": _count(model, "moe_intermediate_size"),
    }


def _refuse_split(model: Mapping[str, Any], parallel: Parallel, path: Path) -> None:
    heads = _count(model, "num_attention_heads")
    ranks = parallel.tensor
    if heads and heads % ranks:
        raise UsageError(
            f"parallel.tensor: {heads} attention heads of {path} cannot be split over {ranks} "
            f"ranks; use {_listed(_degrees(heads, 0))}"
        )
    kv_heads = _key_value_heads(model)
    if kv_heads and kv_heads % ranks and ranks % kv_heads:
        raise UsageError(
            f"parallel.tensor: {kv_heads} key-value heads of {path} can be neither split over nor "
            f"repeated on {ranks} ranks; use {_listed(_degrees(heads, kv_heads))}"
        )
    layers = _count(model, "num_hidden_layers")
    if layers and parallel.pipeline > layers:
        raise UsageError(
            f"parallel.pipeline: {path} has {layers} layers, fewer than {parallel.pipeline} stages"
        )
    partition = parallel.layer_partition
    if layers and partition and sum(partition) != layers:
        raise UsageError(
            f"parallel.layer_partition: it adds up to {sum(partition)} layers, {path} has {layers}"
        )


def _key_value_heads(model: Mapping[str, Any]) -> int:
    """0: multi-head latent attention has one latent, which every rank holds."""
    return 0 if model.get("kv_lora_rank") else _count(model, "num_key_value_heads")


def _degrees(heads: int, kv_heads: int) -> list[int]:
    """The tensor parallel degrees that work; `kv_heads` 0: any number will do."""
    return [
        ranks
        for ranks in range(1, heads + 1)
        if heads % ranks == 0 and not (kv_heads and kv_heads % ranks and ranks % kv_heads)
    ]


def _listed(degrees: list[int]) -> str:
    shown = [str(degree) for degree in degrees]
    return " or ".join(filter(None, (", ".join(shown[:-1]), shown[-1]))) if shown else "1"


def _is_fp8(config: Mapping[str, Any]) -> bool:
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict):
        return False
    return quantization.get("quant_method") in _FP8_METHODS or any(
        weights.get("type") == "float" and weights.get("num_bits") == 8
        for weights in _weight_schemes(config)
    )


def _weight_schemes(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What compressed-tensors says of weights, a group of layers each."""
    quantization = config.get("quantization_config")
    groups = quantization.get("config_groups") if isinstance(quantization, dict) else None
    schemes = groups.values() if isinstance(groups, dict) else ()
    weights = [scheme.get("weights") for scheme in schemes if isinstance(scheme, dict)]
    return [found for found in weights if isinstance(found, dict)]


def _is_modelslim(path: Path) -> bool:
    """Quantised anew for Ascend; config.json may still speak of what it was made from."""
    return (path / "quant_model_description.json").is_file()


def _count(model: Mapping[str, Any], key: str) -> int:
    value = model.get(key)
    return value if isinstance(value, int) and value > 0 else 0


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}
