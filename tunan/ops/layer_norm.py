"""LayerNorm (Ba, Kiros and Hinton, arXiv 1607.06450):
y = (x - mean(x)) / sqrt(var(x) + epsilon) * weight + bias, var over n, not n - 1."""

from collections.abc import Callable, Mapping

import torch
from torch import nn

Implementation = Callable[
    [torch.Tensor, torch.Tensor | None, torch.Tensor | None, tuple[int, ...], float], torch.Tensor
]

OPERATOR = "aten::native_layer_norm"


def reference(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    shape: tuple[int, ...],
    epsilon: float,
) -> torch.Tensor:
    """x [..., *shape], weight and bias [*shape] -> [..., *shape] of x's dtype."""
    dims = tuple(range(-len(shape), 0))
    wide = x.float()
    centred = wide - wide.mean(dims, keepdim=True)
    normed = centred * torch.rsqrt(centred.pow(2).mean(dims, keepdim=True) + epsilon)
    if weight is not None:
        normed = normed * weight.float()
    if bias is not None:
        normed = normed + bias.float()
    return normed.to(x.dtype)


def native(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    shape: tuple[int, ...],
    epsilon: float,
) -> torch.Tensor:
    """torch's operator, on the device aclnnLayerNorm: op-plugin's documentation names it as the
    successor of npu_layer_norm_eval, which is being retired."""
    return nn.functional.layer_norm(x, shape, weight, bias, epsilon)


IMPLEMENTATIONS: Mapping[str, Implementation] = {
    "reference": reference,
    "cpu": native,
    "npu": native,
}


class LayerNorm(nn.Module):
    """Takes the place of a LayerNorm and keeps its parameters, names and all."""

    def __init__(self, module: nn.LayerNorm, implementation: Implementation) -> None:
        super().__init__()
        self.weight = module.weight
        self.bias = module.bias
        self.normalized_shape = tuple(module.normalized_shape)
        self.epsilon = module.eps
        self.implementation = implementation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., *normalized_shape] -> the same shape."""
        return self.implementation(x, self.weight, self.bias, self.normalized_shape, self.epsilon)


def replacement(module: nn.Module, backend: str) -> nn.Module | str | None:
    """A LayerNorm for torch's (or one derived without a forward of its own), None otherwise."""
    if not isinstance(module, nn.LayerNorm):
        return None
    if type(module).forward is not nn.LayerNorm.forward:
        return "derived from LayerNorm with a forward of its own"
    return LayerNorm(module, IMPLEMENTATIONS[backend])
