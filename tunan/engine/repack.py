"""Repacks weights for the CPU layer by layer while they load, instead of all at the end.

vLLM's CPU kernels take weights in a layout of their own (`process_weights_after_loading`).
Done at the end, as vLLM does, all of the model is in memory as it was stored while the
repacked one grows beside it; done as soon as a layer is complete, only that layer is.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tunan.engine import compat


@dataclass
class LayerRepacker:
    """Repacks modules early and hides them from vLLM's own pass until `restore`."""

    model: nn.Module
    _hidden: list[tuple[Any, Any]] = field(default_factory=list)

    def layer_complete(self, layer: int) -> None:
        """All parameters of decoder layer `layer` are loaded."""
        for module in self.model.get_submodule(f"model.layers.{layer}").modules():
            method = getattr(module, "quant_method", None)
            if not isinstance(method, compat.unquantised_methods()):
                continue
            stored = dict(module.named_parameters(recurse=False))
            with torch.no_grad():
                method.process_weights_after_loading(module)
            _drop_replaced(stored, module)
            self._hide(module)

    def leave_embedding_as_it_is(self) -> None:
        """Keeps vLLM from repacking the input embedding, which is only ever indexed.

        The head, tied or not, is a module of its own with a copy of its own. Should a model
        multiply by the embedding after all, it gets the plain product.
        """
        for module in compat.input_embeddings(self.model):
            module.cpu_linear = torch.nn.functional.linear
            self._hide(module)

    def restore(self) -> None:
        """Makes the hidden modules whole again, once vLLM's own pass is over."""
        while self._hidden:
            module, method = self._hidden.pop()
            module.quant_method = method

    def _hide(self, module: Any) -> None:
        self._hidden.append((module, module.quant_method))
        module.quant_method = None


def _drop_replaced(stored: dict[str, nn.Parameter], module: nn.Module) -> None:
    """Frees what was repacked: a model that is being loaded still lists the old parameters."""
    for name, parameter in stored.items():
        if getattr(module, name) is not parameter:
            parameter.data = parameter.data.new_empty(0)


@dataclass
class LayerCount:
    """Says when the last needed tensor of a layer has been consumed."""

    remaining: dict[int, int]

    def consumed(self, layer: int | None) -> Iterator[int]:
        """Yields the layer if it is complete now."""
        if layer is None:
            return
        self.remaining[layer] -= 1
        if self.remaining[layer] == 0:
            yield layer
