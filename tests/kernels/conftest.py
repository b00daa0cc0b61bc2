"""Every test that asks for `isa` runs with every instruction set of this CPU in turn."""

from collections.abc import Iterator

import pytest
import torch

from tests.kernels.isas import ISAS
from tunan import kernels


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread() -> Iterator[None]:
    """The references are small: OpenMP's threads only get into the way of each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    kernels.select_isa(request.param)
    yield request.param
    kernels.select_isa(None)


@pytest.fixture(params=[3], ids="threads={}".format)
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    kernels.configure_pool(kernels.PoolConfig(threads=request.param))
    yield request.param
    kernels.configure_pool(kernels.PoolConfig())
