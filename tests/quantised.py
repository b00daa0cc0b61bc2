"""What a quantised checkpoint must compute: plain PyTorch, exact sums of integers."""

from collections.abc import Iterator
from contextlib import contextmanager
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
    """x in integers by its row's largest value, the weight by the scales stored for it: one an
    output channel, or one for each group of its inputs."""

    def __init__(
        self, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
    ) -> None:
        super().__init__()
        group = weight.shape[1] // scale.shape[1]
        self.weight = weight.double() * scale.double().repeat_interleave(group, 1)
        self.bias = None if bias is None else bias.float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        token = x.float().abs().amax(-1, keepdim=True) / 127
        sums = torch.round(x.float() / token).double() @ self.weight.t()
        product = sums.float() * token
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
    logits = model(torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :].float()
    found = torch.log_softmax(logits, -1)
    chosen = found.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    return float((found.amax(-1) - chosen).max())


@contextmanager
def routed_as(model: Any, experts: list[list[list[int]]]) -> Iterator[list[float]]:
    """While it lasts `model` sends each token where an engine did: `experts` is a layer's, for
    each token, of all layers with experts.

    Two experts about as good swap with any rounding and change all that follows, so what an engine
    computes and where it sends a token are compared apart. The list given is filled, as the
    model runs, with the most that the engine's choice falls behind the model's own in each layer.
    """
    behind: list[float] = []
    layers = [layer.mlp for layer in model.model.layers if hasattr(layer.mlp, "experts")]
    assert len(layers) == len(experts)

    def reroute(mlp: Any, everything: torch.Tensor) -> Any:
        def hook(_: Any, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            chosen = everything[: len(given[0])]
            assert len(chosen) == len(given[0])
            scores, choice = _router_scores(mlp, model.config, given[0])
            behind.append(float(_behind(choice, chosen, model.config).max()))
            weights = scores.gather(1, chosen)
            if model.config.norm_topk_prob:
                weights = weights / weights.sum(-1, keepdim=True)
            return given[0], chosen, weights * model.config.routed_scaling_factor

        return hook

    hooks = [
        mlp.experts.register_forward_pre_hook(reroute(mlp, torch.tensor(chosen)))
        for mlp, chosen in zip(layers, experts, strict=True)
    ]
    try:
        yield behind
    finally:
        for hook in hooks:
            hook.remove()


def _router_scores(mlp: Any, config: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What experts weigh and what they are chosen by, each [tokens, experts]."""
    logits = x.float() @ mlp.gate.weight.float().t()
    if config.model_type == "deepseek_v2":
        return (scores := logits.softmax(-1)), scores
    scores = logits.sigmoid()
    return scores, scores + mlp.gate.e_score_correction_bias.float()


def _behind(choice: torch.Tensor, chosen: torch.Tensor, config: Any) -> torch.Tensor:
    """How much better, for each token, the best group or expert left out is than the worst one
    taken; 0 where the best are taken."""
    taken = torch.zeros_like(choice, dtype=torch.bool).scatter(1, chosen, True)
    if config.n_group <= 1:
        return _left_out(choice, taken)
    groups = choice.view(len(choice), config.n_group, -1)
    worth, used = groups.topk(2, -1)[0].sum(-1), taken.view_as(groups).any(-1)
    assert (used.sum(-1) == config.topk_group).all()
    within = groups.masked_fill(~used.unsqueeze(-1), -torch.inf).view_as(choice)
    return torch.maximum(_left_out(worth, used), _left_out(within, taken))


def _left_out(scores: torch.Tensor, taken: torch.Tensor) -> torch.Tensor:
    best_left = scores.masked_fill(taken, -torch.inf).amax(-1)
    return (best_left - scores.masked_fill(~taken, torch.inf).amin(-1)).clamp(min=0)


def _linear(tensors: Tensors, name: str) -> EightBitLinear:
    return EightBitLinear(
        tensors[f"{name}.weight"], tensors[f"{name}.weight_scale"], tensors.get(f"{name}.bias")
    )
