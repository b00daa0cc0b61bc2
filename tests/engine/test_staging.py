"""The pool with `FakeDevice`: a device on host memory whose work runs in a thread, late."""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
import torch

from tunan.engine.staging import Event, StagingOptions, StagingPool, copy_to_device


class FakeEvent:
    """Complete once the device's thread has come to it."""

    def __init__(self, device: "FakeDevice") -> None:
        self._device = device
        self._reached = threading.Event()

    def record(self) -> None:
        self._device.work.put(self._reached.set)

    def synchronize(self) -> None:
        self._device.go.set()
        assert self._reached.wait(timeout=60)
        if self._device.failure:
            raise self._device.failure


class FakeDevice:
    """Holds every copy back until somebody waits for it (or `go` is set)."""

    def __init__(self) -> None:
        self.work: queue.Queue[Callable[[], object]] = queue.Queue()
        self.go = threading.Event()
        self.failure: Exception | None = None
        self.buffers: list[torch.Tensor] = []
        self.started: list[int] = []
        self.released = False
        threading.Thread(target=self._run, daemon=True).start()

    def pinned(self, size: int) -> torch.Tensor:
        self.buffers.append(torch.zeros(size, dtype=torch.uint8))
        return self.buffers[-1]

    @contextmanager
    def stream(self) -> Iterator[None]:
        yield

    def event(self) -> Event:
        return FakeEvent(self)

    def release(self) -> None:
        self.released = True

    def _run(self) -> None:
        while True:
            work = self.work.get()
            self.go.wait()
            try:
                work()
            except Exception as error:
                self.failure = error


class DeviceTensor(torch.Tensor):
    """Memory of `FakeDevice`: a non-blocking copy into it only joins the device's queue."""

    device_of: ClassVar[dict[int, FakeDevice]] = {}

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.copy_ and (kwargs or {}).get("non_blocking"):
            target, source = (a.as_subclass(torch.Tensor) for a in args)
            device = cls.device_of[target.untyped_storage().data_ptr()]
            device.started.append(source.data_ptr())
            device.work.put(lambda: target.copy_(source))
            return args[0]
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


def on_device(device: FakeDevice, like: torch.Tensor) -> torch.Tensor:
    tensor = torch.zeros_like(like)
    DeviceTensor.device_of[tensor.untyped_storage().data_ptr()] = device
    return tensor.as_subclass(DeviceTensor)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(torch.Tensor)


SMALL = StagingOptions(buffers=2, buffer_bytes=1024)


@pytest.mark.parametrize("shape", [(5,), (512,), (513,), (7, 999), ()])
def test_every_byte_arrives(device: FakeDevice, shape: tuple[int, ...]) -> None:
    source = torch.randn(shape).to(torch.bfloat16)
    target = on_device(device, source)
    with StagingPool(device, SMALL) as pool:
        pool.copy(target, source)
    assert torch.equal(plain(target), source)


def test_the_pool_never_holds_more_than_its_buffers(device: FakeDevice) -> None:
    sources = [torch.randn(100, 100) for _ in range(5)]
    targets = [on_device(device, source) for source in sources]
    with StagingPool(device, SMALL) as pool:
        for target, source in zip(targets, sources, strict=True):
            pool.copy(target, source)
    assert sum(buffer.nbytes for buffer in device.buffers) == 2 * 1024
    assert all(torch.equal(plain(t), s) for t, s in zip(targets, sources, strict=True))


def test_the_next_buffer_is_filled_while_a_copy_is_under_way(device: FakeDevice) -> None:
    source = torch.arange(256, dtype=torch.float32)
    target = on_device(device, source)
    pool = StagingPool(device, SMALL)
    pool.copy(target[:128], source[:128])
    pool.copy(target[128:], source[128:])
    assert not device.go.is_set()  # nothing has completed, both buffers are filled
    assert plain(target).count_nonzero() == 0
    assert [buffer.view(torch.float32)[:128][-1].item() for buffer in device.buffers] == [127, 255]
    pool.wait()
    assert torch.equal(plain(target), source)


def test_a_buffer_is_filled_again_only_after_its_copy_is_complete(device: FakeDevice) -> None:
    source = torch.arange(3 * 256, dtype=torch.float32)
    target = on_device(device, source)
    pool = StagingPool(device, SMALL)
    pool.copy(target[:512], source[:512])
    assert not device.go.is_set()
    pool.copy(target[512:], source[512:])  # must wait for the first copy
    assert device.go.is_set()
    assert torch.equal(plain(target)[:256], source[:256])
    pool.wait()
    assert torch.equal(plain(target), source)


def test_copies_start_in_order_and_take_turns_with_the_buffers(device: FakeDevice) -> None:
    source = torch.arange(1024, dtype=torch.float32)
    with StagingPool(device, SMALL) as pool:
        pool.copy(on_device(device, source), source)
    first, second = (buffer.data_ptr() for buffer in device.buffers)
    assert device.started == [first, second, first, second]


def test_the_source_may_go_as_soon_as_copy_returns(device: FakeDevice) -> None:
    source = torch.full((64,), 3.0)
    target = on_device(device, source)
    pool = StagingPool(device, SMALL)
    pool.copy(target, source)
    source.zero_()
    pool.wait()
    assert plain(target).tolist() == [3.0] * 64


def test_a_failed_copy_raises_where_it_is_waited_for(device: FakeDevice) -> None:
    source = torch.ones(64)
    pool = StagingPool(device, SMALL)
    pool.copy(on_device(device, source), source)
    device.failure = RuntimeError("507015: the device is gone")
    with pytest.raises(RuntimeError, match="507015"):
        pool.wait()


def test_tensors_that_do_not_match_are_refused(device: FakeDevice) -> None:
    pool = StagingPool(device, SMALL)
    with pytest.raises(ValueError, match=r"cannot copy \[4\] into \[2, 2\]"):
        pool.copy(torch.zeros(2, 2), torch.zeros(4))
    with pytest.raises(ValueError, match="contiguous"):
        pool.copy(torch.zeros(4, 4).t(), torch.zeros(4, 4))


@pytest.mark.parametrize("wanted", [torch.float32, torch.float16])
def test_another_dtype_is_converted_on_the_way(device: FakeDevice, wanted: torch.dtype) -> None:
    source = torch.randn(7, 333).to(torch.bfloat16)
    target = on_device(device, source.to(wanted))
    with StagingPool(device, SMALL) as pool:
        pool.copy(target, source)
    assert torch.equal(plain(target), source.to(wanted))
    assert sum(buffer.nbytes for buffer in device.buffers) == 2 * 1024


def test_the_buffers_are_given_back_when_all_is_copied(device: FakeDevice) -> None:
    source = torch.ones(8)
    with StagingPool(device, SMALL) as pool:
        pool.copy(on_device(device, source), source)
        assert not device.released
    assert device.released


def test_host_parameters_are_copied_at_once() -> None:
    target = torch.zeros(3)
    copy_to_device([(target, torch.tensor([1.0, 2.0, 3.0]).to(torch.bfloat16))])
    assert target.tolist() == [1.0, 2.0, 3.0]
