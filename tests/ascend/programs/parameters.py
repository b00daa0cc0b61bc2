"""What lies on the device once a model is loaded. Runs in each of vLLM's workers."""

import ctypes
import hashlib
from collections.abc import Iterator

import torch
import torch_npu
from torch import nn


def on_device(model: nn.Module) -> dict[str, str]:
    """{name: layout and sha256} of every parameter, buffer and tensor that attention has made of
    them, of its very bytes in the device's memory: on an emulated device it is the host's.

    Left out are the offsets that vllm-ascend gives int8 weights and never fills in or uses.
    """
    tensors = dict(_tensors(model))
    return {n: _digest(t) for n, t in tensors.items() if not n.endswith("weight_offset")}


def _tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
    for name, module in model.named_modules():
        made = vars(getattr(module, "impl", None) or object.__new__(_Empty))
        for key, value in made.items():
            if isinstance(value, torch.Tensor):
                yield f"{name}.impl.{key}", value


class _Empty:
    """Has no tensors."""


def _digest(tensor: torch.Tensor) -> str:
    if tensor.device.type != "npu":
        raise AssertionError(f"a tensor of the model is on {tensor.device}")
    torch_npu.npu.synchronize()
    storage = tensor.untyped_storage()
    content = ctypes.string_at(storage.data_ptr(), storage.nbytes())
    layout = torch_npu.get_npu_format(tensor)
    head = f"{list(tensor.shape)} {tensor.stride()} {tensor.dtype} format {layout}"
    return f"{head} {len(content)} bytes {hashlib.sha256(content).hexdigest()}"
