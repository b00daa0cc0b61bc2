"""Mixtures of experts, packed and plain, and what their single operators give."""

from dataclasses import dataclass

import torch

from tests.kernels.reference import spread
from tunan.kernels.linear import linear, linear_quantized, packed_bytes
from tunan.kernels.moe import PackedExperts, pack_experts
from tunan.kernels.norm import swiglu_quantized

# Inputs that share a scale, by the form of the weights; 0: all of an output's.
GROUPS = {"w8": 0, "w4g32": 32, "w4g64": 64, "w4g128": 128}
TYPES = [torch.float32, torch.bfloat16, torch.float16]


@dataclass(frozen=True)
class Weights:
    """values [experts, N, K] int8 and scales [experts, N, groups], plain and packed."""

    values: torch.Tensor
    scales: torch.Tensor
    packed: PackedExperts

    @property
    def dense(self) -> torch.Tensor:
        """[experts, N, K] float64."""
        group = self.packed.group or self.values.shape[2]
        return torch.stack(
            [
                values * spread(scales.double(), group, self.values.shape[2])
                for values, scales in zip(self.values, self.scales, strict=True)
            ]
        )


def pack(values: torch.Tensor, scales: torch.Tensor, group: int) -> Weights:
    experts, outputs, inputs = values.shape
    bits = 4 if group else 8
    size = packed_bytes(outputs, inputs, bits=bits, group=group, scale_dtype=scales.dtype)
    out = torch.empty(experts * size + 64, dtype=torch.uint8)
    out = out[-out.data_ptr() % 64 :][: experts * size]
    return Weights(values, scales, pack_experts(values, scales, group, out))


def weights(form: str, experts: int, outputs: int, inputs: int, seed: int) -> Weights:
    random = torch.Generator().manual_seed(seed)
    group = GROUPS[form]
    limit = 8 if group else 128
    values = torch.randint(
        -limit, limit, (experts, outputs, inputs), generator=random, dtype=torch.int8
    )
    groups = -(-inputs // group) if group else 1
    scales = torch.rand(experts, outputs, groups, generator=random) + 0.5
    scales = scales * (inputs**-0.5 / limit)
    return pack(values, scales.half() if group == 128 else scales, group)


def mixture(form: str, experts: int, hidden: int, inner: int) -> tuple[Weights, Weights]:
    gate_up = weights(form, experts, 2 * inner, hidden, seed=1)
    return gate_up, weights(form, experts, hidden, inner, seed=2)


def routes(
    tokens: int, top_k: int, experts: int, seed: int = 3
) -> tuple[torch.Tensor, torch.Tensor]:
    """Different experts of each token, and their weights."""
    random = torch.Generator().manual_seed(seed)
    drawn = torch.rand(tokens, experts, generator=random).argsort(dim=1)[:, :top_k]
    return drawn.int().contiguous(), torch.rand(tokens, top_k, generator=random)


def tokens(count: int, hidden: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return (3 * torch.randn(count, hidden, generator=torch.Generator().manual_seed(4))).to(dtype)


def one_by_one(
    x: torch.Tensor,
    experts: torch.Tensor,
    factors: torch.Tensor,
    gate_up: PackedExperts,
    down: PackedExperts,
) -> torch.Tensor:
    """Expert by expert, each a few calls of the single operators."""
    totals = torch.zeros(x.shape)
    for expert in range(gate_up.count):
        chosen, place = torch.nonzero(experts == expert, as_tuple=True)
        if len(chosen):
            rows = swiglu_quantized(linear(x[chosen], gate_up[expert]))
            found = linear_quantized(rows, down[expert], torch.empty_like(x[chosen]))
            totals[chosen] += factors[chosen, place][:, None] * found.float()
    return totals.to(x.dtype)


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int32 if x.dtype == torch.float32 else torch.int16)
