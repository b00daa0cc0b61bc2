"""A model on the meta device from its configuration alone, one layer of each kind."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunan.checkpoint.architectures import ARCHITECTURES, architecture_of, has_experts, number
from tunan.errors import CheckFailedError, OutsideError, UsageError

if TYPE_CHECKING:
    import torch

# transformers' name where it differs from the checkpoint's.
_MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
}


@dataclass(frozen=True)
class MetaModel:
    """A model without weights. `layers` has, for each layer that was kept, its kind and how
    many of the kind the real model has."""

    model: "torch.nn.Module"
    architecture: str
    layers: tuple[tuple[str, int], ...]


def read_config(path: Path) -> dict[str, Any]:
    """The configuration of a checkpoint directory or of a bare `config.json`.

    Raises UsageError if there is none and CheckFailedError if it is not a JSON object.
    """
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise UsageError(f"{path}: no config.json there; name a checkpoint directory or the file")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckFailedError(f"{file}: not JSON ({error})") from error
    if not isinstance(config, dict):
        raise CheckFailedError(f"{file}: a configuration is a JSON object")
    return config


def meta_model(config: Mapping[str, Any], dtype: str) -> MetaModel:
    """transformers' own modelling code of an architecture, with one layer of each kind.

    Never runs code that comes with a checkpoint. Raises UsageError for an architecture that
    transformers has no code for here, OutsideError without torch and transformers.
    """
    architecture = architecture_of(config).name
    if architecture not in _MODEL_TYPES:
        raise UsageError(
            f"{architecture}: transformers has no code of its own for it (the checkpoint's is not "
            f"run); the audit knows {', '.join(_MODEL_TYPES)}"
        )
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise OutsideError(
            f"{error.name} is not installed; pip install 'tunan[convert]'"
        ) from error
    kinds = layer_kinds(config)
    settings = {k: v for k, v in config.items() if not k.startswith("_") and k not in _NOT_OURS}
    settings |= {"num_hidden_layers": len(kinds), "first_k_dense_replace": _dense_first(kinds)}
    try:
        return MetaModel(_build(architecture, settings, dtype), architecture, kinds)
    except Exception as error:
        # Whatever transformers finds wrong with a configuration; its checks have many types.
        raise CheckFailedError(
            f"config.json: transformers cannot build {architecture} from it ({error})"
        ) from error


def _build(architecture: str, settings: dict[str, Any], dtype: str) -> "torch.nn.Module":
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    made = AutoConfig.for_model(_MODEL_TYPES[architecture], **settings)
    if ARCHITECTURES[architecture].experts:
        # Both look at no data; torch's grouped product takes bfloat16 only.
        made._experts_implementation = "grouped_mm" if dtype == "bfloat16" else "batched_mm"
    with torch.device("meta"):
        model: torch.nn.Module = AutoModelForCausalLM.from_config(
            made, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        )
    return model.eval()


# Quantisation is not of the modelling code; layer_types has an entry a layer.
_NOT_OURS = ("quantization_config", "auto_map", "model_type", "architectures", "layer_types")


def layer_kinds(config: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """The kinds of decoder layer in a model and how many it has of each, dense ones first."""
    layers = range(number(config, "num_hidden_layers"))
    experts = sum(has_experts(config, layer) for layer in layers)
    dense = len(layers) - experts
    kinds = (("dense layer", dense), ("expert layer", experts))
    return tuple((kind, count) for kind, count in kinds if count)


def _dense_first(kinds: tuple[tuple[str, int], ...]) -> int:
    return sum(kind == "dense layer" for kind, _ in kinds)
