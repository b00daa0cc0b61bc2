"""vLLM's linear kernels for compressed-tensors' W8A8 (int8) and W4A8 schemes, by ours.

vLLM asks each kernel class whether it can; the first that can is taken, and its own come
after these (`registration.py`).
"""

from typing import Any

import torch
from torch import nn
from vllm.config import get_current_vllm_config
from vllm.model_executor.kernels.linear import Int8ScaledMMLinearKernel, MPLinearKernel
from vllm.scalar_type import scalar_types

from tunan.engine.cpu import packed_linear
from tunan.engine.cpu.log import logger
from tunan.engine.cpu.packed_file import PackedWeights
from tunan.engine.cpu.packed_linear import Form, packed_of
from tunan.engine.cpu.process import sidecar_of, start_threads
from tunan.kernels.linear import GROUPS


class PackingKernel:
    """Both kernels' treatment of a layer: its packed weights mapped or made, and run."""

    loaded_names: tuple[str, ...] = ()
    _found: PackedWeights | None = None

    def bind(self) -> None:
        """Remembers, while the model is built, whose weights these are."""
        self.sidecar = sidecar_of(get_current_vllm_config())

    def form(self, layer: Any) -> Form:
        raise NotImplementedError

    def find(self, layer: Any) -> bool:
        """Maps the layer's packed weights of an earlier start. False: there are none."""
        if self._found is None:
            self._found = packed_linear.find(self.sidecar, layer.prefix, self.form(layer))
        return self._found is not None

    def ignore_weights(self, layer: Any) -> None:
        """Has vLLM pass over the weights of a layer that was found."""
        for name in self.loaded_names:
            getattr(layer, name).weight_loader = _ignore

    def finish(self, layer: Any) -> None:
        """Packs what was loaded, unless it was found, and lets go of what was loaded."""
        start_threads()
        weight, scales = (getattr(layer, name) for name in self.loaded_names[:2])
        self.find(layer)
        form = self.form(layer)
        packed = self._found or packed_linear.make(
            self.sidecar, layer.prefix, form, weight.data, scales.data
        )
        packed_linear.attach(layer, packed, form, getattr(layer, "bias", None))
        self._found = None
        for name in self.loaded_names:
            empty = torch.empty(0, dtype=weight.dtype)
            setattr(layer, name, nn.Parameter(empty, requires_grad=False))


class CpuInt8LinearKernel(PackingKernel, Int8ScaledMMLinearKernel):  # type: ignore[misc]
    """W8A8: int8 weights with a scale an output, activations quantised a token at a time."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        return True, None

    @classmethod
    def can_implement(cls, c: Any) -> tuple[bool, str | None]:
        if c.is_static_input_scheme:
            return _refused("W8A8", "activations have a fixed scale")
        if not c.input_symmetric:
            return _refused("W8A8", "activations have a zero point")
        if not c.is_channelwise:
            return _refused("W8A8", "weights have one scale a tensor")
        return True, None

    def __init__(self, c: Any, layer_param_names: Any) -> None:
        super().__init__(c, layer_param_names)
        self.loaded_names = tuple(layer_param_names[:2])
        self.bind()

    def form(self, layer: Any) -> Form:
        outputs, inputs = getattr(layer, self.loaded_names[0]).shape
        return Form(outputs, inputs, 8, 0)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        self.finish(layer)

    def apply_weights(
        self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return _apply(layer, x, bias)


class CpuW4A8LinearKernel(PackingKernel, MPLinearKernel):  # type: ignore[misc]
    """W4A8: symmetric int4 weights in groups, activations quantised a token at a time."""

    @classmethod
    def get_min_capability(cls) -> int:
        return 1

    @classmethod
    def can_implement(cls, c: Any) -> tuple[bool, str | None]:
        if c.weight_type != scalar_types.int4:
            return False, f"weights are {c.weight_type}"  # another scheme, not a gap of ours
        if c.zero_points:
            return _refused("W4A8", "weights have zero points")
        if c.group_size not in GROUPS:
            return _refused("W4A8", f"groups are of {c.group_size}, not of {GROUPS}")
        return True, None

    def __init__(self, c: Any, *names: Any, **named: Any) -> None:
        super().__init__(c, *names, **named)
        # The scheme registers the weight under two names.
        self.loaded_names = (self.w_q_name, self.w_s_name, "weight")
        self.bind()

    def form(self, layer: Any) -> Form:
        outputs, inputs = getattr(layer, self.loaded_names[0]).shape
        return Form(outputs, inputs, 4, self.config.group_size)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        self.finish(layer)

    def apply_weights(
        self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return _apply(layer, x, bias)


def _apply(layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    packed = packed_of(layer)
    if packed is None:
        raise RuntimeError("a layer is used before its weights are packed")
    return packed(x, add_bias=bias is not None)


def _refused(scheme: str, reason: str) -> tuple[bool, str]:
    logger.warning_once("tunan: vLLM's own kernels run the %s layers: %s", scheme, reason)
    return False, reason


def _ignore(parameter: Any, loaded: Any, *shard: Any, **named: Any) -> bool:
    """A weight loader for what is packed already: what vLLM hands it is not even read."""
    return True
