"""The rotation of DeepSeek's queries and keys, rounded where vLLM rounds it.

vLLM has a kernel for plain rotary embeddings and PyTorch's operators for DeepSeek's scaled ones,
which gather and repeat the angles in every layer anew: once a step is enough.
"""

from collections.abc import Callable
from typing import Any

import torch

from tunan.kernels.rope import rotate

# Rotates query [tokens, heads, rotary] and key [tokens, 1, rotary] in place.
Rotate = Callable[[torch.Tensor, torch.Tensor], None]


class LatentRotation:
    """All layers' rotation by one of vLLM's rotary embeddings, plain or DeepSeek's."""

    def __init__(self, rotary: Any, dtype: torch.dtype) -> None:
        self._table = rotary.cos_sin_cache.to(dtype).contiguous()
        self._neox = bool(rotary.is_neox_style)
        self._in_steps = is_scaled(rotary)

    def of(self, positions: torch.Tensor) -> Rotate:
        """The rotation of a step's tokens at positions int64 [tokens]."""
        if not self._in_steps:
            return lambda query, key: rotate(positions, query, key, self._table, neox=self._neox)
        cos, sin = (self._spread(part) for part in self._table[positions].chunk(2, dim=-1))

        def rotate_in_steps(query: torch.Tensor, key: torch.Tensor) -> None:
            both = torch.cat((query, key), dim=1)
            # Three roundings, as vLLM's three operators have.
            both = both * cos + self._partners(both) * sin
            query.copy_(both[:, :-1])
            key.copy_(both[:, -1:])

        return rotate_in_steps

    def _spread(self, angles: torch.Tensor) -> torch.Tensor:
        if self._neox:
            return torch.cat((angles, angles), dim=-1).unsqueeze(1)
        return angles.repeat_interleave(2, dim=-1).unsqueeze(1)

    def _partners(self, x: torch.Tensor) -> torch.Tensor:
        if self._neox:
            first, second = x.chunk(2, dim=-1)
            return torch.cat((-second, first), dim=-1)
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


def is_scaled(rotary: Any) -> bool:
    """Whether it is DeepSeek's, which vLLM 0.32 has no kernel for on a CPU."""
    from vllm.model_executor.layers.rotary_embedding.deepseek_scaling_rope import (
        DeepseekScalingRotaryEmbedding,
    )

    return type(rotary) is DeepseekScalingRotaryEmbedding
