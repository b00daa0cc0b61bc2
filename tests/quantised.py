"""What a W8A8 checkpoint must compute: plain PyTorch, sums in integers."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

Tensors = dict[str, torch.Tensor]


def load_blocks(directory: Path) -> Tensors:
    """Every tensor of the plain layout of a converted checkpoint."""
    found: Tensors = {}
    for file in sorted(directory.glob("*.safetensors")):
        found |= load_file(file)
    return found


class EightBitLinear(nn.Module):
    """x by its row's largest value, the weight by its channel's; sums in integers."""

    def __init__(
        self, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
    ) -> None:
        super().__init__()
        self.weight, self.scale = weight.double(), scale.float().flatten()
        self.bias = None if bias is None else bias.float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        token = x.float().abs().amax(-1, keepdim=True) / 127
        sums = torch.round(x.float() / token).double() @ self.weight.t()
        product = sums.float() * self.scale * token
        return (product if self.bias is None else product + self.bias).to(x.dtype)


class EightBitExperts(nn.Module):
    """The routed experts of a layer, called as transformers calls its own."""

    def __init__(self, tensors: Tensors, prefix: str) -> None:
        super().__init__()
        count = sum(name.startswith(prefix) and "up_proj.weight" in name for name in tensors) // 2
        self.experts = nn.ModuleList(
            nn.ModuleDict(
                {
                    name: _linear(tensors, f"{prefix}.{expert}.{name}")
                    for name in ("gate_proj", "up_proj", "down_proj")
                }
            )
            for expert in range(count)
        )

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(x, dtype=torch.float32)
        for number, expert in enumerate(self.experts):
            tokens, place = torch.where(chosen == number)
            if len(tokens):
                inner = nn.functional.silu(expert["gate_proj"](x[tokens])) * expert["up_proj"](  # type: ignore[index]
                    x[tokens]
                )
                made = expert["down_proj"](inner).float()  # type: ignore[index]
                total.index_add_(0, tokens, made * weights[tokens, place].float()[:, None])
        return total.to(x.dtype)


def reference_model(source: Path, quantised: Path, dtype: torch.dtype) -> Any:
    """transformers' model of `source` with the 8-bit layers of `quantised` in their places."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype).eval()
    tensors = load_blocks(quantised)
    for name, module in list(model.named_modules()):
        parent, _, leaf = name.rpartition(".")
        if f"{name}.weight_scale" in tensors:
            setattr(model.get_submodule(parent), leaf, _linear(tensors, name))
        elif name.endswith(".mlp.experts"):
            setattr(model.get_submodule(parent), leaf, EightBitExperts(tensors, name))
        elif isinstance(module, nn.Linear):
            stored = tensors[f"{name}.weight"].to(dtype)
            if not torch.equal(module.weight, stored):
                raise AssertionError(f"{name} is neither quantised nor the source's own")
    return model


@torch.no_grad()
def next_logprobs(model: Any, prompt: list[int]) -> torch.Tensor:
    """Log-probabilities [V] of the token after `prompt`."""
    return torch.log_softmax(model(torch.tensor([prompt])).logits[0, -1].float(), -1)


@torch.no_grad()
def shortfall(model: Any, prompt: list[int], tokens: list[int]) -> float:
    """How much less likely than the model's own choice, at worst, each of `tokens` after
    `prompt` is (natural logarithms): 0 if all are what the model would say, near 0 where
    bfloat16 swaps two that are about as likely."""
    logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].float()
    found = torch.log_softmax(logits, -1)
    chosen = found.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    return float((found.amax(-1) - chosen).max())


def _linear(tensors: Tensors, name: str) -> EightBitLinear:
    return EightBitLinear(
        tensors[f"{name}.weight"], tensors[f"{name}.weight_scale"], tensors.get(f"{name}.bias")
    )
