"""Eight-bit checkpoints as compressed-tensors writes them, and what they must compute."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

EIGHT_BITS = {"num_bits": 8, "type": "int", "symmetric": True}
SCHEME = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head", "re:.*gate$", "re:.*kv_b_proj$", "re:.*kv_a_proj_with_mqa$"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": EIGHT_BITS | {"strategy": "channel", "dynamic": False},
            "input_activations": EIGHT_BITS | {"strategy": "token", "dynamic": True},
        }
    },
}


def write_w8a8(source: Path, destination: Path) -> Path:
    """Rounds the rows of `source`'s projections to 255 steps each. Returns `destination`."""
    destination.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        (destination / file.name).write_bytes(file.read_bytes())
    tensors: dict[str, torch.Tensor] = {}
    for name, weight in load_file(source / "model.safetensors").items():
        if not name.endswith("_proj.weight") or "kv_b_proj" in name:
            tensors[name] = weight
            continue
        scale = weight.float().abs().amax(1, keepdim=True) / 127
        tensors[name] = torch.round(weight.float() / scale).to(torch.int8)
        tensors[f"{name}_scale"] = scale.to(torch.bfloat16)
    save_file(tensors, destination / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    (destination / "config.json").write_text(json.dumps(config | {"quantization_config": SCHEME}))
    return destination


class EightBitLinear(nn.Module):
    """x by its row's largest value, the weight by its channel's; sums in integers."""

    def __init__(self, weight: torch.Tensor, scale: torch.Tensor) -> None:
        super().__init__()
        self.weight, self.scale = weight.double(), scale.float().flatten()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        token = x.float().abs().amax(-1, keepdim=True) / 127
        sums = torch.round(x.float() / token).double() @ self.weight.t()
        return (sums.float() * self.scale * token).to(x.dtype)


def reference_logprobs(source: Path, quantised: Path, prompt: list[int]) -> torch.Tensor:
    """Log-probabilities of the next token [V], in bfloat16 with 8-bit projections."""
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).eval()
    tensors = load_file(quantised / "model.safetensors")
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and f"{name}.weight_scale" in tensors:
            parent, _, leaf = name.rpartition(".")
            linear = EightBitLinear(tensors[f"{name}.weight"], tensors[f"{name}.weight_scale"])
            setattr(model.get_submodule(parent), leaf, linear)
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([prompt])).logits[0, -1].float(), -1)
