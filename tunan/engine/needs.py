"""Which tensors of a checkpoint this process needs, read off the model it has built.

A pipeline stage has placeholders where another stage has layers, and the main model has
no module for a multi-token-prediction layer (a draft model has no other): so the module
tree itself says what to load, and nothing about the parallel layout is worked out twice.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from torch import nn

from tunan.checkpoint.architectures import layer_of

_EXPERT = re.compile(r"\.experts\.(\d+)\.")


@dataclass(frozen=True)
class Needs:
    """`layers` None: the tree shows no decoder layers, so every tensor is taken as needed.
    `experts` None: all of them."""

    layers: frozenset[int] | None
    absent: tuple[str, ...]
    experts: frozenset[int] | None

    def __call__(self, name: str) -> bool:
        """Whether this process needs the tensor of this name."""
        if name.startswith(self.absent):
            return False
        layer = layer_of(name)
        if layer is not None and self.layers is not None and layer not in self.layers:
            return False
        expert = _EXPERT.search(name)
        return self.experts is None or expert is None or int(expert[1]) in self.experts


def needs_of(
    model: nn.Module, missing: tuple[type[nn.Module], ...], experts: Collection[int] | None
) -> Needs:
    """What `model` needs; `missing` are the placeholder types, `experts` the local ones."""
    modules = dict(model.named_modules())
    absent = tuple(f"{name}." for name, module in modules.items() if isinstance(module, missing))
    layers = frozenset(_layers(modules, missing))
    return Needs(layers or None, absent, None if experts is None else frozenset(experts))


def _layers(modules: dict[str, nn.Module], missing: tuple[type[nn.Module], ...]) -> Iterator[int]:
    for name, module in modules.items():
        layer = layer_of(f"{name}.")
        if layer is not None and not isinstance(module, missing):
            yield layer
