"""Products with weights that are not quantised, against float64 and against themselves."""

import pytest
import torch

from tests.kernels.isas import ISAS, in_one_isa
from tests.kernels.paged import relative_error
from tunan import kernels
from tunan.errors import UsageError
from tunan.kernels.dense import dense, dense_of_batches

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 4e-3}
by_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
SHAPES = [(1, 1, 1), (1, 64, 5), (3, 70, 33), (6, 31, 64), (9, 257, 40)]  # rows, inputs, outputs


def normal(*shape: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.usefixtures("isa")
@by_dtype
@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
def test_a_product_is_what_float64_says(
    rows: int, inputs: int, outputs: int, dtype: torch.dtype
) -> None:
    x = normal(rows, inputs, seed=1, dtype=dtype)
    weight = normal(outputs, inputs, seed=2, dtype=dtype)
    expected = x.double() @ weight.double().T
    assert relative_error(dense(x, weight), expected) < TOLERANCE[dtype]


@pytest.mark.usefixtures("isa")
@by_dtype
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
def test_batches_have_weights_of_their_own(
    rows: int, inputs: int, outputs: int, dtype: torch.dtype, *, transposed: bool
) -> None:
    # Parts of larger tensors, as heads are.
    x = normal(rows, 3, inputs + 7, seed=1, dtype=dtype).transpose(0, 1)[..., :inputs]
    shape = (inputs, outputs) if transposed else (outputs, inputs)
    weight = normal(3, shape[0] + 5, shape[1], seed=2, dtype=dtype)[:, 2 : 2 + shape[0]]
    plain = weight.double() if transposed else weight.double().transpose(1, 2)
    found = dense_of_batches(x, weight, transposed=transposed)
    assert relative_error(found, x.double() @ plain) < TOLERANCE[dtype]


@pytest.mark.usefixtures("isa")
@by_dtype
@pytest.mark.parametrize("transposed", [False, True])
def test_a_row_alone_has_the_bits_that_it_has_among_others(
    threads: int, dtype: torch.dtype, *, transposed: bool
) -> None:
    x = normal(2, 11, 300, seed=1, dtype=dtype)
    weight = normal(2, *((300, 150) if transposed else (150, 300)), seed=2, dtype=dtype)
    together = dense_of_batches(x, weight, transposed=transposed)
    kernels.configure_pool(kernels.PoolConfig())
    for row in range(11):
        alone = dense_of_batches(x[:, row : row + 1], weight, transposed=transposed)
        assert torch.equal(alone[:, 0], together[:, row])
    assert threads


@by_dtype
@pytest.mark.parametrize("transposed", [False, True])
def test_every_instruction_set_has_the_same_bits(dtype: torch.dtype, *, transposed: bool) -> None:
    x = normal(2, 7, 170, seed=1, dtype=dtype)
    weight = normal(2, *((170, 90) if transposed else (90, 170)), seed=2, dtype=dtype)
    found = []
    for isa in ISAS:
        kernels.select_isa(isa)
        found.append(dense_of_batches(x, weight, transposed=transposed))
    kernels.select_isa(None)
    assert all(torch.equal(one, found[0]) for one in found)


@pytest.mark.usefixtures("isa")
@in_one_isa
def test_what_does_not_fit_is_refused() -> None:
    x = torch.zeros(2, 8)
    with pytest.raises(UsageError, match=r"x \(2, 8\) for weights \(3, 9\)"):
        dense(x, torch.zeros(3, 9))
    with pytest.raises(UsageError, match=r"weights of torch\.bfloat16"):
        dense(x, torch.zeros(3, 8, dtype=torch.bfloat16))
    with pytest.raises(UsageError, match="in pieces"):
        dense(x, torch.zeros(8, 3).T)
