"""RMSNorm (Zhang and Sennrich, arXiv 1910.07467): y = x / sqrt(mean(x^2) + epsilon) * weight."""

from collections.abc import Callable, Mapping

import torch
from torch import nn

Implementation = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]

OPERATOR = "npu::npu_rms_norm"
_TOLERANCE = 1e-3  # of the float32 probe; a norm that adds 1 to its weight is far outside


def reference(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """x [..., n], weight [n] -> [..., n] of x's dtype; rounded once, as the device does."""
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return (wide * scale * weight.float()).to(x.dtype)


def cpu(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """torch's own operator; shapes and dtypes as for `reference`."""
    return nn.functional.rms_norm(x, weight.shape, weight.to(x.dtype), epsilon)


def npu(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """One kernel. x and weight float16, bfloat16 (Atlas A2, A3) or float32; the weight has x's
    dtype or is float32."""
    normed: torch.Tensor = torch.ops.npu.npu_rms_norm(x, weight, epsilon)[0]
    return normed


IMPLEMENTATIONS: Mapping[str, Implementation] = {"reference": reference, "cpu": cpu, "npu": npu}


class RMSNorm(nn.Module):
    """Takes the place of a model's own RMSNorm and keeps its parameter, name and all."""

    def __init__(
        self, weight: nn.Parameter, epsilon: float, implementation: Implementation
    ) -> None:
        super().__init__()
        self.weight = weight
        self.epsilon = epsilon
        self.implementation = implementation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., n] -> [..., n]."""
        return self.implementation(x, self.weight, self.epsilon)


def replacement(module: nn.Module, backend: str) -> nn.Module | str | None:
    """An RMSNorm for a module that is one, by what it is called and holds; a reason if it looks
    like one and is not; None for any other module."""
    if not type(module).__name__.endswith("RMSNorm") or isinstance(module, RMSNorm):
        return None
    weight = getattr(module, "weight", None)
    epsilon = _epsilon(module)
    if not isinstance(weight, nn.Parameter) or weight.dim() != 1 or epsilon is None:
        return "no one-dimensional weight and epsilon that are known"
    if getattr(module, "bias", None) is not None:
        return "adds a bias"
    if not _is_plain(module, weight, epsilon):
        return "computes something else than RMSNorm"
    return RMSNorm(weight, epsilon, IMPLEMENTATIONS[backend])


def _epsilon(module: nn.Module) -> float | None:
    for name in ("variance_epsilon", "eps", "epsilon"):
        value = getattr(module, name, None)
        if isinstance(value, float):
            return value
    if isinstance(module, nn.RMSNorm):
        return torch.finfo(module.weight.dtype).eps
    return None


def _is_plain(module: nn.Module, weight: torch.Tensor, epsilon: float) -> bool:
    """Whether the module computes what the formula says: by trying, where there are weights."""
    if weight.is_meta:
        return not type(module).__name__.startswith("Gemma")
    x = torch.linspace(-2, 3, weight.numel(), device=weight.device).to(weight.dtype)
    with torch.no_grad():
        difference = (module(x[None]).float() - reference(x[None], weight, epsilon).float()).abs()
        bound = _TOLERANCE if weight.dtype == torch.float32 else 0.05
        return bool((difference <= bound * (1 + weight.abs().float())).all())
