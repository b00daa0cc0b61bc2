"""GELU (Hendrycks and Gimpel, arXiv 1606.08415) in its three forms.

exact    x * Phi(x), with erf
tanh     0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
quick    x * sigmoid(1.702 x)

torch.nn.functional.gelu on the device always computes the tanh form, whatever `approximate`
says (op-plugin's documentation), so the exact form needs npu_gelu. npu_fast_gelu is the quick
form on Atlas A2 and A3; against the exact form it errs by up to 0.0204 in absolute terms, at
|x| near 2.2 (tests measure it).
"""

import math
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import nn

Form = Literal["exact", "tanh", "quick"]
Implementation = Callable[[torch.Tensor, Form], torch.Tensor]

OPERATORS: Mapping[Form, str] = {
    "exact": "npu::npu_gelu",
    "tanh": "npu::npu_gelu",
    "quick": "npu::npu_fast_gelu",
}
_BY_CLASS: Mapping[str, Form] = {
    "GELUActivation": "exact",
    "GELUTanh": "tanh",
    "PytorchGELUTanh": "tanh",
    "NewGELUActivation": "tanh",
    "FastGELUActivation": "tanh",
    "QuickGELUActivation": "quick",
}


def reference(x: torch.Tensor, form: Form) -> torch.Tensor:
    """x of any shape -> the same shape and dtype, computed in float32."""
    wide = x.float()
    if form == "exact":
        gate = 0.5 * (1 + torch.erf(wide / math.sqrt(2)))
    elif form == "tanh":
        gate = 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide.pow(3))))
    else:
        gate = torch.sigmoid(1.702 * wide)
    return (wide * gate).to(x.dtype)


def cpu(x: torch.Tensor, form: Form) -> torch.Tensor:
    """torch's own operators."""
    if form == "quick":
        return x * torch.sigmoid(1.702 * x)
    return nn.functional.gelu(x, approximate="tanh" if form == "tanh" else "none")


def npu(x: torch.Tensor, form: Form) -> torch.Tensor:
    """One kernel; float16, bfloat16 (Atlas A2, A3) or float32."""
    if form == "quick":
        fast: torch.Tensor = torch.ops.npu.npu_fast_gelu(x)
        return fast
    exact: torch.Tensor = torch.ops.npu.npu_gelu(
        x, approximate="tanh" if form == "tanh" else "none"
    )
    return exact


IMPLEMENTATIONS: Mapping[str, Implementation] = {"reference": reference, "cpu": cpu, "npu": npu}


class GELU(nn.Module):
    """One form of GELU on one backend."""

    def __init__(self, form: Form, implementation: Implementation) -> None:
        super().__init__()
        self.form: Form = form
        self.implementation = implementation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x of any shape -> the same shape."""
        return self.implementation(x, self.form)


def replacement(module: nn.Module, backend: str, *, fast: bool = False) -> nn.Module | str | None:
    """A GELU of the same form for torch's and transformers' classes; None for any other module.

    `fast` takes the quick form for all of them: another function, see above.
    """
    if isinstance(module, GELU):
        return None
    form = _BY_CLASS.get(type(module).__name__)
    if type(module) is nn.GELU:
        form = "tanh" if module.approximate == "tanh" else "exact"
    if form is None:
        return None
    return GELU("quick" if fast else form, IMPLEMENTATIONS[backend])
