"""The threads: configured, kept out of each other's way, and alive after a fork."""

import os
import signal
import threading
from pathlib import Path

import pytest
import torch

from tests.kernels.reference import weights
from tunan import kernels
from tunan.errors import UsageError
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
    child = os.fork()
    if child == 0:
        # torch's own threads do not outlive a fork: nothing but the kernels computes here.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)
        same = linear(x, packed).numpy().tobytes() == expected.numpy().tobytes()
        os._exit(0 if same and len(_threads()) == 3 else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert torch.equal(linear(x, packed), expected)
    kernels.configure_pool(kernels.PoolConfig())


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
