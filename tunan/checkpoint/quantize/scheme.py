"""What `--quantize` means: how a weight is held in integers and what its activations become."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Role = Literal["values", "scale"]
# Integers int8 [rows, columns] and their scales float32 [rows, groups].
Rounded = tuple["torch.Tensor", "torch.Tensor"]


@dataclass(frozen=True, slots=True)
class WeightScheme:
    """How the weight [out, in] of a linear layer is held: integers times a positive scale.

    `bits` of each integer, which lies in [lowest, limit]. One scale covers `group` inputs of one
    output channel, all of them if None. `clipping` searches the scale with the least squared
    error; without it the largest value of a group decides. Scales are numbers that bfloat16
    holds exactly, so that an engine that keeps them in bfloat16 and one that keeps them in
    float32 compute the same; `scale_dtype` is the safetensors code they are stored in.
    """

    bits: int = 8
    group: int | None = None
    clipping: bool = True
    scale_dtype: Literal["F32", "BF16"] = "F32"

    @property
    def limit(self) -> int:
        """The largest integer: 127 of 8 bits, 7 of 4."""
        return int((1 << (self.bits - 1)) - 1)

    @property
    def lowest(self) -> int:
        """The smallest integer: -127 of 8 bits, as activations have it, but -8 of 4, where one
        step more is much."""
        return -self.limit if self.bits == 8 else -self.limit - 1

    def groups(self, columns: int) -> int:
        """Scales in a row of `columns` weights."""
        return columns // self.group if self.group else 1

    def stored_bits(self, columns: int) -> float:
        """Bits that a weight of a row of `columns` takes, its share of the scales included."""
        scale = 16 if self.scale_dtype == "BF16" else 32
        return self.bits + scale * self.groups(columns) / columns

    @property
    def finer(self) -> "WeightScheme":
        """What a layer that this scheme would cost too much is held in: int8 by channel."""
        return WeightScheme(clipping=self.clipping)


@dataclass(frozen=True, slots=True)
class Quantised:
    """Which half of a quantised weight a written tensor is."""

    scheme: WeightScheme
    role: Role


@dataclass(frozen=True)
class Quantisation:
    """A choice of `--quantize`: activations are always int8, symmetric, scaled by each token's
    largest value while the model runs. `fitted_on` names the text that weights were smoothed and
    rounded on (`fitting`), None: they are rounded to nearest; `rotated`: turned before
    (`rotation`). `finer` names the tensors held in `weights.finer` instead (`mixing`), so that
    a weight takes `average_bits` at most."""

    name: str
    weights: WeightScheme
    fitted_on: str | None = None
    rotated: bool = False
    finer: frozenset[str] = frozenset()
    average_bits: float | None = None


QUANTISATIONS: Mapping[str, Quantisation] = {
    choice.name: choice
    for choice in (
        Quantisation("w8a8", WeightScheme()),
        Quantisation("w4a8", WeightScheme(bits=4, group=32, scale_dtype="BF16")),
    )
}

GROUP_SIZES = (32, 64, 128)
