"""Linear layers with packed weights: made from what vLLM loaded, or mapped, and run."""

from dataclasses import dataclass
from typing import Any

import torch

from tunan.engine.cpu.packed_file import PackedWeights
from tunan.engine.cpu.sidecar import Sidecar
from tunan.errors import CheckFailedError
from tunan.kernels import linear as kernels

# Where a module of vLLM carries its packed layer.
_ATTRIBUTE = "tunan_packed"

# Scales that float16 holds exactly are kept in it: less to read for every group.
_SCALE_TYPES = {"f16": torch.float16, "f32": torch.float32}


@dataclass(frozen=True)
class PackedLayer:
    """y[..., outputs] = x[..., inputs] W' + bias.

    `weights` keeps the memory of `packed` alive; `bias` is float32 [outputs] or None.
    """

    weights: PackedWeights
    packed: kernels.PackedLinear
    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor, *, add_bias: bool) -> torch.Tensor:
        bias = self.bias if add_bias else None
        if torch.compiler.is_compiling():
            # A call through ctypes is nothing that can be traced; an operator is.
            result: torch.Tensor = traced_linear(x, self.packed.data, bias, self.packed.outputs)
            return result
        return kernels.linear(x, self.packed, bias)


@torch.library.custom_op("tunan::packed_linear", mutates_args=())
def traced_linear(
    x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, outputs: int
) -> torch.Tensor:
    """`kernels.linear` as an operator of PyTorch; `packed` [bytes] uint8 has `outputs` outputs."""
    return kernels.linear(x, kernels.read_packed(packed), bias)


@traced_linear.register_fake
def _(
    x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, outputs: int
) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], outputs)


@dataclass(frozen=True)
class Form:
    """Shape and precision of a layer's weights: 8 bits (group 0: one scale an output), or 4."""

    outputs: int
    inputs: int
    bits: int
    group: int

    def bytes(self, scale: str) -> int:
        """Packed size with scales of type `scale`. Raises UsageError if no kernel takes it."""
        return kernels.packed_bytes(
            self.outputs,
            self.inputs,
            bits=self.bits,
            group=self.group,
            scale_dtype=_SCALE_TYPES[scale],
        )

    def name(self, scale: str) -> str:
        """Names what is packed and how."""
        return f"{self.outputs}x{self.inputs} w{self.bits} g{self.group} {scale}"

    def read(self, data: torch.Tensor) -> kernels.PackedLinear:
        """Packed bytes of this form. Raises CheckFailedError if they say that they are not."""
        packed = kernels.read_packed(data)
        found = Form(packed.outputs, packed.inputs, packed.bits, packed.group)
        if found != self:
            raise CheckFailedError(f"packed weights are {found}, not {self}")
        return packed

    def fits(self, data: torch.Tensor) -> bool:
        """Whether `read` takes them."""
        try:
            self.read(data)
        except CheckFailedError:
            return False
        return True


def packed_of(module: Any) -> PackedLayer | None:
    """The packed layer that a module of vLLM carries, if it does."""
    found = getattr(module, _ATTRIBUTE, None)
    return found if isinstance(found, PackedLayer) else None


def attach(module: Any, weights: PackedWeights, form: Form, bias: torch.Tensor | None) -> None:
    """Makes `module` carry a packed layer. Raises CheckFailedError if it is not of `form`."""
    typed = None if bias is None else bias.detach().float().contiguous()
    layer = PackedLayer(weights, form.read(weights.data), typed)
    setattr(module, _ATTRIBUTE, layer)


def find(sidecar: Sidecar, name: str, form: Form) -> PackedWeights | None:
    """The layer's packed weights from an earlier start."""
    for scale in _SCALE_TYPES if form.group else ("f32",):
        found = sidecar.find(name, form.name(scale), form.bytes(scale), form.fits)
        if found is not None:
            return found
    return None


def make(
    sidecar: Sidecar, name: str, form: Form, weight: torch.Tensor, scales: torch.Tensor
) -> PackedWeights:
    """Packs weight [N, K] int8 (-8 to 7 if of 4 bits) with scales [N] or [N, K / group]."""
    scale = "f32"
    if form.group and torch.equal(scales.half().float(), scales.float()):
        scale = "f16"
    typed = scales.to(_SCALE_TYPES[scale])

    def pack(out: torch.Tensor) -> None:
        if form.group:
            kernels.pack_w4(weight, typed, form.group, out=out)
        else:
            kernels.pack_w8(weight, typed, out=out)

    return sidecar.make(name, form.name(scale), form.bytes(scale), pack)
