"""Copies mapped tensors to a device through a few pinned host buffers.

A device reads pageable memory only through a driver's own bounce buffer, and waits for
it. Here the host fills one pinned buffer (which is what reads the file) while the copies
out of the others are under way. A buffer is filled again only after the copy that reads
it has completed, so host memory stays at `buffers * buffer_bytes` however large the model.

Written against torch_npu's Stream and Event, which have torch.cuda's interface. Unit tests drive
the pool with a device that is faked on the CPU, tests/ascend with torch_npu on an emulated one.
"""

from collections import deque
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import torch


class Event(Protocol):
    """A point in a stream of device work."""

    def record(self) -> None:
        """Marks the current end of the current stream."""

    def synchronize(self) -> None:
        """Waits until the device has reached the mark; raises what its work raised."""


class Device(Protocol):
    """What the pool needs of an accelerator."""

    def pinned(self, size: int) -> torch.Tensor:
        """`size` bytes (uint8) of page-locked host memory."""

    def stream(self) -> AbstractContextManager[Any]:
        """Work issued inside goes to a stream of the pool's own."""

    def event(self) -> Event:
        """A new, unrecorded event."""

    def release(self) -> None:
        """Gives page-locked memory that nothing uses any more back to the system."""


@dataclass(frozen=True)
class StagingOptions:
    """Two buffers overlap reading and copying; the third absorbs jitter of either."""

    buffers: int = 3
    buffer_bytes: int = 32 << 20


class StagingPool:
    """See the module. Use as a context manager: leaving it waits for every copy and gives the
    buffers back."""

    def __init__(self, device: Device, options: StagingOptions | None = None) -> None:
        self._device = device
        self._options = options or StagingOptions()
        self._free: list[torch.Tensor] = []
        self._busy: deque[tuple[torch.Tensor, Event]] = deque()
        self._made = 0

    def __enter__(self) -> "StagingPool":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.wait()
        finally:
            self._free.clear()
            self._busy.clear()
            self._made = 0
            self._device.release()

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Starts copying `source` (host, contiguous) into `destination` (device, contiguous).

        Same shape; another dtype is converted while a buffer is filled. `source` may be freed on
        return; `destination` is complete after `wait`. Raises ValueError for tensors that do not
        match, and what an earlier copy failed with.
        """
        if source.shape != destination.shape:
            raise ValueError(f"cannot copy {list(source.shape)} into {list(destination.shape)}")
        if not destination.is_contiguous():
            raise ValueError("the destination of a staged copy must be contiguous")
        origin = source.contiguous().view(-1)
        target = destination.view(-1)
        step = max(1, self._options.buffer_bytes // target.element_size())
        for start in range(0, origin.numel(), step):
            self._copy_piece(target[start : start + step], origin[start : start + step])

    def wait(self) -> None:
        """Waits for every copy; raises what one of them failed with."""
        while self._busy:
            self._reclaim()

    def _copy_piece(self, target: torch.Tensor, origin: torch.Tensor) -> None:
        buffer = self._take()
        staged = buffer[: target.nbytes].view(target.dtype)
        staged.copy_(origin)
        event = self._device.event()
        with self._device.stream():
            target.copy_(staged, non_blocking=True)
            event.record()
        self._busy.append((buffer, event))

    def _take(self) -> torch.Tensor:
        if not self._free and self._made < self._options.buffers:
            self._made += 1
            return self._device.pinned(self._options.buffer_bytes)
        if not self._free:
            self._reclaim()
        return self._free.pop()

    def _reclaim(self) -> None:
        buffer, event = self._busy.popleft()
        event.synchronize()
        self._free.append(buffer)


class TorchDevice:
    """An accelerator with torch.cuda's interface: `torch.npu` once torch_npu is imported."""

    def __init__(self, kind: str) -> None:
        self._api: Any = getattr(torch, kind)
        self._stream = self._api.Stream()

    def pinned(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)

    def stream(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._api.stream(self._stream)
        return context

    def event(self) -> Event:
        event: Event = self._api.Event()
        return event

    def release(self) -> None:
        # torch's allocator of page-locked memory keeps what is freed for the process's lifetime.
        self._api.host_empty_cache()


def copy_to_device(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copies each (destination, source) through one pool; returns when all are complete.

    A destination that is on the host is copied to at once.
    """
    with ExitStack() as stack:
        pool: StagingPool | None = None
        for destination, source in pairs:
            if destination.device.type == "cpu":
                destination.copy_(source)
                continue
            if pool is None:
                device = TorchDevice(destination.device.type)
                pool = stack.enter_context(StagingPool(device))
            pool.copy(destination.data, source)
