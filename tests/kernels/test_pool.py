"""The threads: configured, kept out of each other's way, and alive after a fork."""

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tests.kernels.reference import weights
from tunan import kernels
from tunan.errors import OutsideError, UsageError
from tunan.kernels.linear import linear


def _threads() -> list[str]:
    """Ids of this process's threads."""
    return [task.name for task in Path("/proc/self/task").iterdir()]


def test_one_thread_until_told_otherwise(threads: int) -> None:
    assert kernels.pool_threads() == threads
    kernels.configure_pool(kernels.PoolConfig())
    assert kernels.pool_threads() == 1


def test_threads_run_on_the_cpus_given() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    before = set(_threads())
    kernels.configure_pool(kernels.PoolConfig(threads=2, cpus=(cpus[0], cpus[-1])))
    (worker,) = set(_threads()) - before
    packed = weights("w8", 320, 256).pack()
    for _ in range(1000):
        linear(torch.randn(64, 256), packed)
        if os.sched_getaffinity(int(worker)) == {cpus[-1]}:
            break
    assert os.sched_getaffinity(int(worker)) == {cpus[-1]}
    assert os.sched_getaffinity(0) == set(cpus)
    kernels.configure_pool(kernels.PoolConfig())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (kernels.PoolConfig(threads=0), "0 is no number of threads"),
        (kernels.PoolConfig(threads=2, cpus=(0,)), "1 CPUs for 2 threads"),
        (kernels.PoolConfig(cpus=(-1,)), "-1 is no CPU"),
        (kernels.PoolConfig(spin_us=-5), "-5 microseconds"),
    ],
)
def test_impossible_settings_are_refused(config: kernels.PoolConfig, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        kernels.configure_pool(config)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_computes_with_threads_of_its_own() -> None:
    kernels.configure_pool(kernels.PoolConfig(threads=3))
    packed = weights("w8", 640, 256).pack()
    x = torch.randn(64, 256)
    expected = linear(x, packed)

    def computes_the_same() -> bool:
        same = linear(x, packed).numpy().tobytes() == expected.numpy().tobytes()
        return same and len(_threads()) == 3

    assert _exit_of_child(computes_the_same) == 0
    assert torch.equal(linear(x, packed), expected)
    kernels.configure_pool(kernels.PoolConfig())


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_all_threads_of_a_forked_child_may_come_first() -> None:
    kernels.configure_pool(kernels.PoolConfig(threads=2))
    packed = weights("w8", 640, 256).pack()
    x = torch.randn(64, 256)
    expected = linear(x, packed).numpy().tobytes()

    def all_agree() -> bool:
        with ThreadPoolExecutor(4) as callers:
            results = list(callers.map(lambda _: linear(x, packed).numpy().tobytes(), range(8)))
        return results == [expected] * 8

    assert _exit_of_child(all_agree) == 0
    kernels.configure_pool(kernels.PoolConfig())


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_that_is_allowed_no_threads_is_told_so_and_may_try_again() -> None:
    kernels.configure_pool(kernels.PoolConfig(threads=3))
    packed = weights("w8", 640, 256).pack()
    x = torch.randn(64, 256)
    expected = linear(x, packed).numpy().tobytes()

    def is_told() -> bool:
        _stacks_of_threads(1 << 46)  # more than there are addresses
        with pytest.raises(OutsideError, match="does not allow 2 threads more"):
            linear(x, packed)
        assert kernels.pool_threads() == 3
        _stacks_of_threads(8 << 20)
        return linear(x, packed).numpy().tobytes() == expected

    assert _exit_of_child(is_told) == 0
    kernels.configure_pool(kernels.PoolConfig())


def test_threads_that_the_system_does_not_allow_are_an_error_and_the_old_ones_stay() -> None:
    _stacks_of_threads(1 << 46)
    try:
        with pytest.raises(OutsideError, match="does not allow 4 threads more"):
            kernels.configure_pool(kernels.PoolConfig(threads=5))
    finally:
        _stacks_of_threads(8 << 20)
    assert kernels.pool_threads() == 1


def _exit_of_child(work: Callable[[], bool]) -> int:
    """0: `work` is true in a forked child. Nothing but the kernels may compute there: torch's own
    threads do not outlive a fork."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)
        with contextlib.suppress(BaseException):
            os._exit(0 if work() else 1)
        os._exit(2)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _stacks_of_threads(size: int) -> None:
    """Sets the bytes that the stacks of threads made from here on have."""
    threads, attributes = ctypes.CDLL(None), ctypes.create_string_buffer(128)
    assert threads.pthread_attr_init(attributes) == 0
    assert threads.pthread_attr_setstacksize(attributes, ctypes.c_size_t(size)) == 0
    assert threads.pthread_setattr_default_np(attributes) == 0


def test_callers_in_several_threads_do_not_disturb_each_other() -> None:
    kernels.configure_pool(kernels.PoolConfig(threads=2))
    packed = weights("w4g32", 640, 256).pack()
    inputs = [torch.randn(20 + i, 256) for i in range(4)]
    expected = [linear(x, packed) for x in inputs]
    wrong: list[int] = []

    def call(i: int) -> None:
        for _ in range(100):
            if not torch.equal(linear(inputs[i], packed), expected[i]):
                wrong.append(i)

    callers = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []
    kernels.configure_pool(kernels.PoolConfig())
