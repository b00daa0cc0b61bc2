"""Runs an operator that the device lacks on the CPU, in the middle of a model on the device.

torch_npu falls back by itself for aten operators that it has no kernel for. This is for the
rest: custom operators, functions, and kernels that are there but wrong or not built for a dtype.
"""

import functools
import logging
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tunan.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

_log = logging.getLogger(__name__)


@dataclass
class Traffic:
    """What a wrapped operator has cost so far. Bytes are of tensors copied each way."""

    calls: int = 0
    to_cpu_bytes: int = 0
    to_device_bytes: int = 0


class CpuFallback:
    """A callable that runs `operator` on CPU copies of its tensors.

    Tensors among the arguments (nested in lists, tuples and dicts too) are copied to the CPU,
    results to the device of the first tensor that is not there; dtypes and strides are kept.
    A tensor that the operator changes in place is written back, and returning it returns the
    caller's own; one whose shape or dtype the operator changes in place cannot be, and is a
    UsageError that leaves the caller's tensors as they were. Nothing is recorded for
    autograd. `traffic` counts; the first call is logged.
    """

    def __init__(self, operator: Callable[..., Any], name: str = "") -> None:
        self.operator = operator
        self.name = name or str(getattr(operator, "__name__", operator))
        self.traffic = Traffic()
        functools.update_wrapper(self, operator, updated=())

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        import torch

        device = _device((args, keywords))
        if device is None:
            return self.operator(*args, **keywords)
        self._note(device)
        # Outside inference mode: only there do the copies count their versions.
        with torch.inference_mode(False), torch.no_grad():
            return self._run(device, args, keywords)

    def _run(self, device: "torch.device", args: Any, keywords: Any) -> Any:
        from torch.utils._pytree import tree_map_only

        copies: dict[int, _Copy] = {}

        def to_cpu(tensor: "torch.Tensor") -> "torch.Tensor":
            copy = copies.get(id(tensor)) or _Copy(tensor)
            copies[id(tensor)] = copy
            return copy.cpu

        def back(tensor: "torch.Tensor") -> "torch.Tensor":
            for copy in copies.values():
                if copy.cpu is tensor:
                    return copy.original
            self.traffic.to_device_bytes += tensor.nbytes
            return tensor.to(device)

        moved = tree_map_only(_tensor_type(), to_cpu, (args, keywords))
        away = [copy for copy in copies.values() if copy.is_copy]
        self.traffic.to_cpu_bytes += sum(copy.cpu.nbytes for copy in away)
        result = self.operator(*moved[0], **moved[1])
        for copy in away:
            copy.check_still_fits(self.name)
        for copy in away:
            if copy.changed:
                copy.original.copy_(copy.cpu)
                self.traffic.to_device_bytes += copy.cpu.nbytes
        return tree_map_only(_tensor_type(), back, result)

    def _note(self, device: "torch.device") -> None:
        self.traffic.calls += 1
        if self.traffic.calls == 1:
            _log.warning(
                "%s runs on the CPU: its tensors are copied from %s and back at every call",
                self.name,
                device,
            )


class _Copy:
    """A tensor and its copy on the CPU (itself if it is there already)."""

    def __init__(self, tensor: "torch.Tensor") -> None:
        self.original = tensor
        self.is_copy = tensor.device.type != "cpu"
        self.cpu = tensor.detach().to("cpu") if self.is_copy else tensor
        self._version = self.cpu._version if self.is_copy else 0

    def check_still_fits(self, name: str) -> None:
        """Raises UsageError if the operator has given the copy another shape or dtype."""
        was, now = self.original, self.cpu
        if (was.shape, was.dtype) != (now.shape, now.dtype):
            raise UsageError(
                f"{name} changes an argument in place from {list(was.shape)} {was.dtype} to "
                f"{list(now.shape)} {now.dtype}, which cannot be written back: return it instead"
            )

    @property
    def changed(self) -> bool:
        return self.cpu._version != self._version


def cpu_fallback(operator: Callable[..., Any], *, name: str = "") -> CpuFallback:
    """Wraps an operator, a function or (as a decorator) a function being defined.

    `name` is what the log calls it. See CpuFallback for what the wrapper promises. Raises
    UsageError for what cannot be called.
    """
    if not callable(operator):
        raise UsageError(
            f"cpu_fallback() wraps an operator or a function, not {type(operator).__name__}"
        )
    return CpuFallback(operator, name)


@contextmanager
def registered(operator: "torch._ops.OpOverload") -> "Iterator[CpuFallback]":
    """Within it, an operator that has a CPU kernel and none for the device has one there as well
    (dispatch key PrivateUse1): models that call it need no change.

    Raises UsageError if the device already has a kernel for it (wrap that with cpu_fallback).
    """
    import torch

    if not isinstance(operator, torch._ops.OpOverload):
        raise UsageError(
            f"registered() takes an overload such as torch.ops.mine.scan.default, not {operator!r}"
        )
    full_name: str = operator.name()  # type: ignore[no-untyped-call]
    namespace, _, name = full_name.partition("::")
    if torch._C._dispatch_has_kernel_for_dispatch_key(full_name, "PrivateUse1"):
        raise UsageError(f"{full_name} has a kernel for the device; wrap it with cpu_fallback")
    wrapped = CpuFallback(operator, full_name)
    library = torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
    try:
        library.impl(name, wrapped, "PrivateUse1")  # type: ignore[no-untyped-call]
        yield wrapped
    finally:
        library._destroy()  # type: ignore[no-untyped-call]


def _device(values: Any) -> "torch.device | None":
    """The device of the first tensor that is not on the CPU."""
    from torch.utils._pytree import tree_leaves

    tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, _tensor_type())]
    return next((tensor.device for tensor in tensors if tensor.device.type != "cpu"), None)


def _tensor_type() -> "type[torch.Tensor]":
    import torch

    return torch.Tensor
