"""Small models in compressed-tensors' W8A8 and W4A8, rounded to nearest, for the engine's tests."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tunan.checkpoint.quantize.which_layers import ignored, is_quantised

GROUP = 32


def quantise(source: Path, destination: Path, scheme: str, *, head: bool = True) -> Path:
    """Writes `source` (one file, bf16) with its linear layers in `scheme`, `w8a8` or `w4a8`.

    `head`: int8 for `lm_head` too. Returns `destination`.
    """
    destination.mkdir(parents=True)
    for path in source.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, destination)
    config = json.loads((source / "config.json").read_text())
    stored = load_file(source / "model.safetensors")
    tensors = dict(_quantised(config, stored, scheme, head))
    save_file(tensors, destination / "model.safetensors", metadata={"format": "pt"})
    config["quantization_config"] = _description(config, scheme, head)
    (destination / "config.json").write_text(json.dumps(config, indent=1))
    return destination


def _quantised(
    config: dict[str, Any], stored: dict[str, torch.Tensor], scheme: str, head: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in stored.items():
        if name == "lm_head.weight" and head:
            yield from _channelwise(name, tensor)
        elif not is_quantised(config, name, tuple(tensor.shape)):
            yield name, tensor
        elif scheme == "w8a8":
            yield from _channelwise(name, tensor)
        else:
            yield from _grouped(name, tensor)


def _channelwise(name: str, weight: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    scale = weight.float().abs().amax(1, keepdim=True).clamp(min=1e-8) / 127
    yield name, torch.round(weight.float() / scale).to(torch.int8)
    yield f"{name}_scale", scale.to(torch.bfloat16)


def _grouped(name: str, weight: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    rows, columns = weight.shape
    groups = weight.float().view(rows, columns // GROUP, GROUP)
    scale = (groups.abs().amax(2, keepdim=True).clamp(min=1e-8) / 7.5).to(torch.bfloat16)
    values = torch.round(groups / scale.float()).clamp(-8, 7).to(torch.int8)
    yield name, values.view(rows, columns)
    yield f"{name}_scale", scale.squeeze(2)


def _description(config: dict[str, Any], scheme: str, head: bool) -> dict[str, Any]:
    eight = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": False}
    channel = eight | {"strategy": "channel"}
    group = channel | {"num_bits": 4, "strategy": "group", "group_size": GROUP}
    token = {
        "num_bits": 8,
        "type": "int",
        "symmetric": True,
        "strategy": "token",
        "dynamic": True,
    }
    linear = channel if scheme == "w8a8" else group
    groups: dict[str, Any] = {
        "group_0": {"targets": ["Linear"], "weights": linear, "input_activations": token}
    }
    if head:
        groups["group_1"] = {
            "targets": ["re:.*lm_head"],
            "weights": channel,
            "input_activations": token,
        }
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": [name for name in ignored(config) if not head or name != "lm_head"],
        "config_groups": groups,
    }
