"""Which experts a token goes to, as DeepSeek-V2 and V3 choose them (native/moe/router.h)."""

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

import torch

from tunan.errors import UsageError
from tunan.kernels import library

_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class _Call(ctypes.Structure):
    """native/moe/router.h: RouterCall."""

    _fields_ = [
        ("logits", ctypes.c_void_p),
        ("type", ctypes.c_int32),
        ("rows", ctypes.c_int64),
        ("experts", ctypes.c_int32),
        ("groups", ctypes.c_int32),
        ("kept_groups", ctypes.c_int32),
        ("top_k", ctypes.c_int32),
        ("sigmoid", ctypes.c_int32),
        ("renormalise", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("bias", ctypes.c_void_p),
        ("placed", ctypes.c_void_p),
        ("chosen", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
    ]


@dataclass(frozen=True)
class Routing:
    """Scores are the softmax (or sigmoid) of the logits. Of `groups` the `kept_groups` best are
    open: by their best score, or with a bias by the two best with it added. Of those come the
    `top_k` best, with the bias; their weights are the scores without it, over their sum if
    `renormalise`, times `scale`.

    bias: [experts] float32 or None. placed: [experts] int32, what each is called here, -1 if it is
    elsewhere; None: all are here.
    """

    top_k: int
    groups: int = 1
    kept_groups: int = 1
    sigmoid: bool = False
    renormalise: bool = False
    scale: float = 1.0
    bias: torch.Tensor | None = None
    placed: torch.Tensor | None = None

    def check(self, experts: int) -> None:
        """Raises UsageError for a bias or places that are not those of so many experts."""
        for name, tensor, dtype in (
            ("bias", self.bias, torch.float32),
            ("placed", self.placed, torch.int32),
        ):
            if tensor is None:
                continue
            if tensor.dtype != dtype or tensor.shape != (experts,) or not tensor.is_contiguous():
                raise UsageError(f"{name} is {tuple(tensor.shape)} {tensor.dtype}; [{experts}]")


def route(logits: torch.Tensor, routing: Routing) -> tuple[torch.Tensor, torch.Tensor]:
    """Of logits [tokens, experts] float32, bfloat16 or float16: (weights [tokens, top_k] float32,
    experts [tokens, top_k] int32), in no order. Raises UsageError."""
    if logits.dim() != 2 or logits.dtype not in _TYPES or not logits.is_contiguous():
        raise UsageError(f"logits are {tuple(logits.shape)} {logits.dtype}; [tokens, experts]")
    rows, experts = logits.shape
    routing.check(experts)
    weights = torch.empty(rows, routing.top_k, dtype=torch.float32)
    chosen = torch.empty(rows, routing.top_k, dtype=torch.int32)
    call = _Call(
        logits.data_ptr(),
        _TYPES[logits.dtype],
        rows,
        experts,
        routing.groups,
        routing.kept_groups,
        routing.top_k,
        routing.sigmoid,
        routing.renormalise,
        routing.scale,
        None if routing.bias is None else routing.bias.data_ptr(),
        None if routing.placed is None else routing.placed.data_ptr(),
        chosen.data_ptr(),
        weights.data_ptr(),
    )
    library.check(_function()(ctypes.byref(call)))
    return weights, chosen


@functools.cache
def _function() -> Any:
    return library.function("tunan_route", ctypes.c_int, ctypes.c_void_p)
