"""The kernels as torch operators, so that torch.compile keeps them whole: torch.ops.tunan.*.

Importing this module registers them. `packed` is the bytes of packed weights
(tunan.kernels.linear.PackedLinear.data).

    tunan::linear(Tensor x, Tensor packed, Tensor? bias, int outputs) -> Tensor
"""

import torch

from tunan.errors import UsageError
from tunan.kernels.linear import linear, read_packed


def _linear(
    x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, outputs: int
) -> torch.Tensor:
    weights = read_packed(packed)
    if weights.outputs != outputs:
        raise UsageError(f"packed weights of {weights.outputs} outputs, not of {outputs}")
    return linear(x, weights, bias)


def _fake_linear(
    x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, outputs: int
) -> torch.Tensor:
    """What torch.compile traces: the result's shape and type."""
    return x.new_empty(*x.shape[:-1], outputs)


# Kept, or torch would take the operators back.
_library = torch.library.Library("tunan", "FRAGMENT")  # type: ignore[no-untyped-call]
_SCHEMA = "linear(Tensor x, Tensor packed, Tensor? bias, int outputs) -> Tensor"
_library.define(_SCHEMA)  # type: ignore[no-untyped-call]
_library.impl("linear", _linear, "CPU")  # type: ignore[no-untyped-call]
torch.library.register_fake("tunan::linear", _fake_linear, lib=_library)
