"""A model on the meta device from its configuration alone, one layer of each kind."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunan.checkpoint.architectures import ARCHITECTURES, has_experts, number
from tunan.errors import CheckFailedError, OutsideError, UsageError
from tunan.ops.config_checks import (
    MODEL_TYPES,
    check_activation,
    check_architecture,
    check_sizes,
)

if TYPE_CHECKING:
    import torch


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
    transformers has no code for here, CheckFailedError for a configuration that fits no model,
    OutsideError without torch and transformers.
    """
    architecture = check_architecture(config)
    check_sizes(config)
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise OutsideError(
            f"{error.name} is not installed; pip install 'tunan[convert]'"
        ) from error
    check_activation(config)
    kinds = layer_kinds(config)
    settings = {k: v for k, v in config.items() if not k.startswith("_") and k not in _NOT_OURS}
    settings |= {"num_hidden_layers": len(kinds), "first_k_dense_replace": _dense_first(kinds)}
    try:
        return MetaModel(_build(architecture, settings, dtype), architecture, kinds)
    except Exception as error:
        # Whatever transformers finds wrong with a configuration; its checks have many types.
        raise CheckFailedError(
            f"config.json: transformers cannot build {architecture} from it ({one_line(error)})"
        ) from error


def one_line(error: Exception) -> str:
    """An error of another library: its kind, and what it says without line breaks."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _build(architecture: str, settings: dict[str, Any], dtype: str) -> "torch.nn.Module":
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    made = AutoConfig.for_model(MODEL_TYPES[architecture], **settings)
    if ARCHITECTURES[architecture].experts:
        # Both look at no data; torch's grouped product takes bfloat16 only.
        made._experts_implementation = "grouped_mm" if dtype == "bfloat16" else "batched_mm"
    with torch.device("meta"):
        model: torch.nn.Module = AutoModelForCausalLM.from_config(
            made, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        )
    return model.eval()


# Quantisation is not of the modelling code (see quantised.py); layer_types has an entry a layer.
_NOT_OURS = (
    "quantization_config",
    "compression_config",
    "auto_map",
    "model_type",
    "architectures",
    "layer_types",
)


def layer_kinds(config: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """The kinds of decoder layer in a model and how many it has of each, dense ones first."""
    layers = range(number(config, "num_hidden_layers"))
    experts = sum(has_experts(config, layer) for layer in layers)
    dense = len(layers) - experts
    kinds = (("dense layer", dense), ("expert layer", experts))
    return tuple((kind, count) for kind, count in kinds if count)


def _dense_first(kinds: tuple[tuple[str, int], ...]) -> int:
    return sum(kind == "dense layer" for kind, _ in kinds)
