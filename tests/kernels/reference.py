"""Linear layers in exact integers, for any of the packed forms."""

from dataclasses import dataclass

import torch

from tunan.kernels.linear import PackedLinear, QuantizedRows, pack_grouped_w8, pack_w4, pack_w8


@dataclass(frozen=True)
class Weights:
    """values [N, K] as integers, less their zero points; scales [N, groups]; group 0: one a row."""

    values: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    bits: int
    group: int

    def pack(self, out: torch.Tensor | None = None) -> PackedLinear:
        if self.group == 0:
            return pack_w8(self.values.to(torch.int8), self.scales[:, 0], out)
        if self.bits == 8:
            return pack_grouped_w8(self.values.to(torch.int8), self.scales, self.group, out)
        if self.zeros is None:
            return pack_w4(self.values.to(torch.int8), self.scales, self.group, None, out)
        stored = self.values + spread(self.zeros.long(), self.group, self.values.shape[1])
        return pack_w4(stored.to(torch.uint8), self.scales, self.group, self.zeros, out)

    def dense(self) -> torch.Tensor:
        """[N, K] float64."""
        group = self.group or self.values.shape[1]
        return self.values * spread(self.scales.double(), group, self.values.shape[1])


FORMS = ["w8", "w8g32", "w8g64", "w4g32", "w4g64", "w4g128", "w4g32z", "w4g128z"]


def weights(form: str, outputs: int, inputs: int, *, seed: int = 0, ones: bool = False) -> Weights:
    """Random weights over the whole range of `form`; `ones` makes every scale 1."""
    random = torch.Generator().manual_seed(seed)
    bits = int(form[1])
    group = int(form.split("g")[1].rstrip("z")) if "g" in form else 0
    groups = -(-inputs // group) if group else 1
    limit = 1 << (bits - 1)
    values = torch.randint(-limit, limit, (outputs, inputs), generator=random)
    zeros = None
    if form.endswith("z"):
        zeros = torch.randint(0, 16, (outputs, groups), generator=random, dtype=torch.uint8)
        values = values + limit - spread(zeros.long(), group, inputs)
    scales = torch.rand(outputs, groups, generator=random) * 0.02 + 1e-3
    if ones:
        scales = torch.ones(outputs, groups)
    return Weights(values, scales.half() if group == 128 else scales, zeros, bits, group)


def spread(of_groups: torch.Tensor, group: int, inputs: int) -> torch.Tensor:
    """[N, groups] as [N, inputs]."""
    return of_groups.repeat_interleave(group, dim=1)[:, :inputs]


def quantized(values: torch.Tensor) -> QuantizedRows:
    """Rows of integers [M, K] with the scale 1."""
    rows, inputs = values.shape
    stride = -(-inputs // 128) * 128
    padded = torch.zeros(rows, stride, dtype=torch.int8)
    padded[:, :inputs] = values
    sums = padded.int().reshape(rows, stride // 32, 32).sum(dim=2, dtype=torch.int32)
    return QuantizedRows(padded, torch.ones(rows), sums, inputs)
