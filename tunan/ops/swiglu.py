"""SwiGLU (Shazeer, arXiv 2002.05202): down(silu(gate(x)) * up(x)), silu(z) = z * sigmoid(z).

gate and up become one matrix product, whose result the kernel halves; the two weights are
joined, so a replaced MLP has `gate_up_proj` in its state dict instead of the two.
"""

from collections.abc import Callable, Mapping

import torch
from torch import nn

Implementation = Callable[[torch.Tensor], torch.Tensor]

OPERATOR = "npu::npu_swiglu"


def reference(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [..., 2n], gate first -> [..., n] of the same dtype, computed in float32."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)


def cpu(gate_up: torch.Tensor) -> torch.Tensor:
    """torch's own operators."""
    gate, up = gate_up.chunk(2, dim=-1)
    return nn.functional.silu(gate) * up


def npu(gate_up: torch.Tensor) -> torch.Tensor:
    """One kernel; float16, bfloat16 (Atlas A2, A3) or float32, contiguous, 2n even."""
    halved: torch.Tensor = torch.ops.npu.npu_swiglu(gate_up, -1)
    return halved


IMPLEMENTATIONS: Mapping[str, Implementation] = {"reference": reference, "cpu": cpu, "npu": npu}


class SwiGLU(nn.Module):
    """Takes the place of an MLP with gate_proj, up_proj, down_proj and SiLU."""

    def __init__(self, gate_up: nn.Linear, down: nn.Linear, implementation: Implementation) -> None:
        super().__init__()
        self.gate_up_proj = gate_up
        self.down_proj = down
        self.implementation = implementation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., hidden] -> [..., hidden]."""
        down: torch.Tensor = self.down_proj(self.implementation(self.gate_up_proj(x)))
        return down


def replacement(module: nn.Module, backend: str) -> nn.Module | str | None:
    """A SwiGLU for an MLP that is one, a reason if it nearly is, None for any other module."""
    parts = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    if not all(isinstance(part, nn.Module) for part in parts):
        return None
    activation = getattr(module, "act_fn", None)
    if type(activation).__name__ not in ("SiLU", "SiLUActivation"):
        return f"its activation is {type(activation).__name__}, not SiLU"
    if not all(type(part) is nn.Linear for part in parts):
        return "its layers are not plain Linear (quantised?)"
    gate, up, down = (part for part in parts if isinstance(part, nn.Linear))
    if (gate.bias is None) is not (up.bias is None):
        return "only one of gate and up has a bias"
    return SwiGLU(_joined(gate, up), down, IMPLEMENTATIONS[backend])


def _joined(gate: nn.Linear, up: nn.Linear) -> nn.Linear:
    joined = nn.Linear(
        gate.in_features,
        gate.out_features + up.out_features,
        bias=gate.bias is not None,
        device="meta",
        dtype=gate.weight.dtype,
    )
    joined.weight = nn.Parameter(torch.cat([gate.weight.data, up.weight.data]), False)
    if gate.bias is not None:
        joined.bias = nn.Parameter(torch.cat([gate.bias.data, up.bias.data]), False)
    return joined
