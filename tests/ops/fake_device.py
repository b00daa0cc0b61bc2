"""A fake device: tensors that say they are elsewhere and keep their data on the CPU.

The device is called "meta" because torch must know the name; data is never lost, because
copies to it are caught. It has every operator but those named as lacking.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

DEVICE = torch.device("meta")


class FakeDeviceTensor(torch.Tensor):
    """A tensor on the fake device; `raw` is its data."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls: Any, raw: torch.Tensor) -> "FakeDeviceTensor":
        made: FakeDeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls, raw.shape, strides=raw.stride(), dtype=raw.dtype, device=DEVICE
        )
        made.raw = raw
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        keywords = dict(kwargs or {})
        if func is torch.ops.aten._to_copy.default and "device" in keywords:
            return args[0].raw.clone()
        raw_args, raw_keywords = tree_map_only(FakeDeviceTensor, _raw, (args, keywords))
        result = func(*raw_args, **raw_keywords)
        if func._schema.is_mutable:
            return args[0]
        return tree_map_only(torch.Tensor, FakeDeviceTensor, result)


class FakeDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it, copying a tensor to the fake device keeps the data."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = dict(kwargs or {})
        to_device = keywords.get("device") == DEVICE
        if func is torch.ops.aten._to_copy.default and to_device:
            return FakeDeviceTensor(args[0].clone())
        return func(*args, **keywords)


def _raw(tensor: FakeDeviceTensor) -> torch.Tensor:
    return tensor.raw
