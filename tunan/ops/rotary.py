"""Rotary position embedding (Su et al., RoFormer, arXiv 2104.09864), applied to queries and keys.

half          pairs are (x[i], x[i + d/2]): x * cos + rotate(x) * sin, rotate = (-second, first)
interleave    pairs are neighbours (x[2i], x[2i+1]); DeepSeek stores its rotary part so

transformers' attention classes call a function of their own file. A class that does gets, for
that one module, a copy of its forward in which the function is ours: nothing that other models
share is changed.
"""

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

OPERATOR = "npu::npu_rotary_mul"
_LARGEST_HEAD = 896  # npu_rotary_mul: head size below it and even, batch and heads below 1000
_LARGEST_COUNT = 1000
_INTERLEAVE_HEAD = 64  # npu_interleave_rope takes this head size only
_Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Rotation:
    """The three rotations of one backend. x [batch, heads, tokens, d]; cos and sin
    [1 or batch, 1, tokens, d], every angle twice: halves equal, or neighbours for `pairs`."""

    half: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    to_half: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    pairs: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def half(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates halves against each other; result of x's shape and dtype."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def to_half(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Sorts neighbours into halves, then rotates halves (DeepSeek-V3)."""
    return half(_sorted(x), cos, sin)


def pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates neighbours in place, in float32 (DeepSeek-V2, there with complex numbers)."""
    cos, sin = cos[..., ::2], sin[..., ::2]
    even, odd = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
    rotated = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return rotated.flatten(-2).to(x.dtype)


def npu_half(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """npu_rotary_mul where it takes the shape, else composed."""
    if not _fits(x) or cos.shape[-1] != x.shape[-1]:
        return half(x, cos, sin)
    rotated: torch.Tensor = torch.ops.npu.npu_rotary_mul(x, cos, sin)
    return rotated


def npu_to_half(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """npu_interleave_rope for heads of 64 in half precision, else npu_rotary_mul on halves."""
    if x.shape[-1] == _INTERLEAVE_HEAD and x.dtype in (torch.float16, torch.bfloat16):
        spread = [part.expand(x.shape[0], -1, -1, -1).contiguous() for part in (cos, sin)]
        rotated: torch.Tensor = torch.ops.npu.npu_interleave_rope(x.contiguous(), *spread)
        return rotated
    return npu_half(_sorted(x), cos, sin)


def npu_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """npu_rotary_mul in mode interleave, in float32, where it takes the shape, else composed."""
    if not _fits(x) or cos.shape[0] != 1 or x.shape[0] * x.shape[1] >= _LARGEST_COUNT:
        return pairs(x, cos, sin)
    rotated: torch.Tensor = torch.ops.npu.npu_rotary_mul(x.float(), cos, sin, "interleave")
    return rotated.to(x.dtype)


IMPLEMENTATIONS: Mapping[str, Rotation] = {
    "reference": Rotation(half, to_half, pairs),
    "cpu": Rotation(half, to_half, pairs),
    "npu": Rotation(npu_half, npu_to_half, npu_pairs),
}


class RealRotaryEmbedding(nn.Module):
    """Takes the place of DeepSeek-V2's complex frequencies: cosines, then sines."""

    def __init__(self, inv_freq: torch.Tensor, scaling: float) -> None:
        super().__init__()
        self.inv_freq: torch.Tensor
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self.scaling = scaling

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """position_ids [batch, tokens] -> float32 [2, batch, tokens, d], neighbours equal."""
        angles = position_ids[..., None].float() * self.inv_freq.to(x.device).float()
        angles = angles.repeat_interleave(2, dim=-1)
        return torch.stack((angles.cos(), angles.sin())) * self.scaling


def replacement(module: nn.Module, backend: str) -> nn.Module | str | None:
    """For an attention module, itself with another forward; for complex rotary frequencies, real
    ones; a reason if the frequencies change with the text's length; None for any other module."""
    if "RotaryEmbedding" in type(module).__name__:
        return _real_frequencies(module)
    forward = inspect.unwrap(type(module).forward)
    functions = _functions(IMPLEMENTATIONS[backend])
    called = [name for name in forward.__code__.co_names if name in functions]
    if not called or "forward" in vars(module):
        return None
    rebound = types.FunctionType(
        forward.__code__,
        {**forward.__globals__, **{name: functions[name] for name in called}},
        forward.__name__,
        forward.__defaults__,
        forward.__closure__,
    )
    rebound.__kwdefaults__ = forward.__kwdefaults__
    module.forward = types.MethodType(rebound, module)
    return module


def _real_frequencies(module: nn.Module) -> nn.Module | str | None:
    if "polar" not in inspect.unwrap(type(module).forward).__code__.co_names:
        return None
    rope_type = getattr(module, "rope_type", "default")
    inv_freq = getattr(module, "inv_freq", None)
    if rope_type not in ("default", "linear", "yarn") or not isinstance(inv_freq, torch.Tensor):
        return f"its frequencies change with the length ({rope_type})"
    return RealRotaryEmbedding(inv_freq, float(getattr(module, "attention_scaling", 1.0)))


def _functions(rotation: Rotation) -> Mapping[str, Callable[..., _Pair]]:
    """What takes the place of transformers' functions, with their names and arguments."""

    def apply_rotary_pos_emb(
        q: torch.Tensor,
        k: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        unsqueeze_dim: int = 1,
    ) -> _Pair:
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        return rotation.half(q, cos, sin), rotation.half(k, cos, sin)

    def apply_rotary_pos_emb_interleave(
        q: torch.Tensor,
        k: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        position_ids: Any = None,
        unsqueeze_dim: int = 1,
    ) -> _Pair:
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        return rotation.to_half(q, cos, sin), rotation.to_half(k, cos, sin)

    def apply_rotary_emb(xq: torch.Tensor, xk: torch.Tensor, freqs_cis: torch.Tensor) -> _Pair:
        cos, sin = freqs_cis.unsqueeze(2).unbind(0)
        return rotation.pairs(xq, cos, sin), rotation.pairs(xk, cos, sin)

    return {
        function.__name__: function
        for function in (apply_rotary_pos_emb, apply_rotary_pos_emb_interleave, apply_rotary_emb)
    }


def _sorted(x: torch.Tensor) -> torch.Tensor:
    """Even positions of the last dimension first, then the odd ones."""
    return x.reshape(*x.shape[:-1], -1, 2).transpose(-1, -2).flatten(-2)


def _fits(x: torch.Tensor) -> bool:
    batch, heads, _, size = x.shape
    return max(batch, heads) < _LARGEST_COUNT and size < _LARGEST_HEAD and size % 2 == 0
