"""Packed weights of routed experts: made from what vLLM loaded, or mapped, and run."""

from dataclasses import dataclass
from typing import Any

import torch

from tunan.engine.cpu.packed_file import PackedWeights
from tunan.engine.cpu.packed_linear import Form
from tunan.engine.cpu.sidecar import Sidecar
from tunan.errors import CheckFailedError
from tunan.kernels import moe as kernels

# Where a module of vLLM carries its packed experts.
_ATTRIBUTE = "tunan_experts"

# Scales that float16 holds exactly are kept in it: less to read for every group.
_SCALE_TYPES = {"f16": torch.float16, "f32": torch.float32}


@dataclass(frozen=True)
class ExpertsForm:
    """`count` experts of one form; `which` says which of the model's they are."""

    count: int
    each: Form
    which: str

    def bytes(self, scale: str) -> int:
        """Packed size of all with scales of type `scale`. Raises UsageError if no kernel takes
        it."""
        return self.count * self.each.bytes(scale)

    def name(self, scale: str) -> str:
        """Names what is packed and how."""
        return f"{self.count} experts ({self.which}) of {self.each.name(scale)}"

    def read(self, data: torch.Tensor) -> kernels.PackedExperts:
        """Packed bytes of this form. Raises CheckFailedError if one of them says that it is not."""
        each = data.numel() // self.count
        for expert in range(self.count):
            self.each.read(data[expert * each : (expert + 1) * each])
        return kernels.read_experts(data, self.count)

    def fits(self, data: torch.Tensor) -> bool:
        """Whether `read` takes them."""
        try:
            self.read(data)
        except CheckFailedError:
            return False
        return True


@dataclass(frozen=True)
class PackedMixture:
    """The routed experts of a layer. `weights` keeps the memory of the others alive."""

    weights: tuple[PackedWeights, PackedWeights]
    gate_up: kernels.PackedExperts
    down: kernels.PackedExperts

    def __call__(
        self, x: torch.Tensor, experts: torch.Tensor, factors: torch.Tensor
    ) -> torch.Tensor:
        """As `kernels.run_experts`."""
        if torch.compiler.is_compiling():
            # A call through ctypes is nothing that can be traced; an operator is.
            result: torch.Tensor = traced_experts(
                x, experts, factors, self.gate_up.data, self.down.data, self.gate_up.count
            )
            return result
        return kernels.run_experts(x, experts, factors, self.gate_up, self.down)


@torch.library.custom_op("tunan::packed_experts", mutates_args=())
def traced_experts(
    x: torch.Tensor,
    experts: torch.Tensor,
    factors: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    count: int,
) -> torch.Tensor:
    """`kernels.run_experts` as an operator of PyTorch; gate_up and down [bytes] uint8 have `count`
    experts."""
    read = kernels.read_experts
    return kernels.run_experts(x, experts, factors, read(gate_up, count), read(down, count))


@traced_experts.register_fake
def _(
    x: torch.Tensor,
    experts: torch.Tensor,
    factors: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    count: int,
) -> torch.Tensor:
    return x.new_empty(x.shape)


def mixture_of(module: Any) -> PackedMixture | None:
    """The packed experts that a module of vLLM carries, if it does."""
    found = getattr(module, _ATTRIBUTE, None)
    return found if isinstance(found, PackedMixture) else None


def attach(
    module: Any, gate_up: tuple[PackedWeights, ExpertsForm], down: tuple[PackedWeights, ExpertsForm]
) -> None:
    """Makes `module` carry packed experts. Raises CheckFailedError if they are not of the forms."""
    read = [form.read(weights.data) for weights, form in (gate_up, down)]
    setattr(module, _ATTRIBUTE, PackedMixture((gate_up[0], down[0]), *read))


def find(sidecar: Sidecar, name: str, form: ExpertsForm) -> PackedWeights | None:
    """The experts' packed weights from an earlier start."""
    for scale in _SCALE_TYPES if form.each.group else ("f32",):
        found = sidecar.find(name, form.name(scale), form.bytes(scale), form.fits)
        if found is not None:
            return found
    return None


def make(
    sidecar: Sidecar, name: str, form: ExpertsForm, weight: torch.Tensor, scales: torch.Tensor
) -> PackedWeights:
    """Packs weight [experts, N, K] int8 (-8 to 7 if of 4 bits) with scales [experts, N, 1] or
    [experts, N, K / group]."""
    scale = "f32"
    if form.each.group and torch.equal(scales.half().float(), scales.float()):
        scale = "f16"
    typed = scales.to(_SCALE_TYPES[scale])

    def pack(out: torch.Tensor) -> None:
        kernels.pack_experts(weight, typed, form.each.group, out)

    return sidecar.make(name, form.name(scale), form.bytes(scale), pack)
