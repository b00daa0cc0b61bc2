"""An int8 head for a quantised checkpoint whose head was left in bfloat16.

The head is read whole for every token: of a small model, a third of all bytes. It is rounded
to nearest with a scale for each row, as `tunan convert` does with other layers; but the quality
that the manifest reports was measured without it, so it has to be asked for.
"""

from typing import Any

import torch

from tunan.engine.cpu import packed_linear
from tunan.engine.cpu.packed_linear import Form, packed_of
from tunan.engine.cpu.sidecar import Sidecar

LARGEST = 127
_ROWS = 4096


class Int8Head:
    """Takes the place of the quantisation method that vLLM's logits processor calls."""

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        packed = packed_of(layer)
        if packed is None:
            raise RuntimeError("the head is used before its weights are packed")
        logits = packed(x, add_bias=False)
        return logits if bias is None else logits + bias


def refusal(head: Any) -> str | None:
    """Why `head` keeps its weights; None if it can be int8."""
    if packed_of(head) is not None:
        return "it is int8 in the checkpoint"
    weight = getattr(head, "weight", None)
    if weight is None or weight.dim() != 2 or not weight.dtype.is_floating_point:
        return "it has no plain weights here"
    return None


def quantise(head: Any, sidecar: Sidecar) -> None:
    """Makes `head` int8, mapped from an earlier start or made now."""
    outputs, inputs = head.weight.shape
    form = Form(outputs, inputs, 8, 0)
    packed = packed_linear.find(sidecar, "lm_head.int8", form)
    if packed is None:
        values, scales = _rounded(head.weight.detach())
        packed = packed_linear.make(sidecar, "lm_head.int8", form, values, scales)
    packed_linear.attach(head, packed, form, None)
    head.quant_method = Int8Head()
    head.cpu_linear = None  # vLLM's own repacked copy


def _rounded(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scales = weight.abs().amax(dim=1, keepdim=True).float().clamp(min=1e-12) / LARGEST
    values = torch.empty(weight.shape, dtype=torch.int8)
    for first in range(0, len(weight), _ROWS):  # a float copy of all of them would be large
        rows = slice(first, first + _ROWS)
        values[rows] = torch.round(weight[rows].float() / scales[rows]).to(torch.int8)
    return values, scales
