"""Linear layers against exact integers, in every instruction set of this CPU."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kernels.isas import in_one_isa
from tests.kernels.reference import FORMS, quantized, weights
from tunan import kernels
from tunan.kernels.linear import PackedLinear, linear, linear_quantized, quantize

pytestmark = pytest.mark.usefixtures("isa")
by_form = pytest.mark.parametrize("form", FORMS)
in_every_isa = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def exact_sums(values: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
    out = torch.empty(values.shape[0], packed.outputs)
    return linear_quantized(quantized(values), packed, out)


@by_form
@in_every_isa
@given(rows=st.integers(1, 40), outputs=st.integers(1, 100), inputs=st.integers(1, 400))
def test_sums_are_exact_for_every_tail(form: str, rows: int, outputs: int, inputs: int) -> None:
    layer = weights(form, outputs, inputs, ones=True, seed=rows)
    x = torch.randint(-127, 128, (rows, inputs), generator=torch.Generator().manual_seed(inputs))
    # Every partial sum is below 2^24, so that float32 holds it.
    assert torch.equal(exact_sums(x, layer.pack()), (x.long() @ layer.values.T).float())


@pytest.mark.parametrize("form", ["w8", "w8g32", "w4g32", "w4g64"])
def test_every_number_of_rows_of_a_tile_is_exact(form: str) -> None:
    layer = weights(form, 70, 321, ones=True)
    packed = layer.pack()
    x = torch.randint(-127, 128, (66, 321), generator=torch.Generator().manual_seed(10))
    expected = (x @ layer.values.T).float()
    for rows in range(1, 67):
        assert torch.equal(exact_sums(x[:rows], packed), expected[:rows]), rows


@pytest.mark.parametrize("form", ["w8", "w4g128"])
def test_a_prompt_of_8192_rows_is_exact(form: str, threads: int) -> None:
    layer = weights(form, 40, 140, ones=True)
    x = torch.randint(-127, 128, (8192, 140), generator=torch.Generator().manual_seed(11))
    expected = x.float() @ layer.values.T.float()
    assert torch.equal(exact_sums(x, layer.pack()), expected)


@pytest.mark.parametrize("weight", [-128, -127, 127])
@pytest.mark.parametrize("value", [-127, 127])
def test_extremes_do_not_saturate(weight: int, value: int) -> None:
    layer = weights("w8", 33, 1000, ones=True)
    layer.values.fill_(weight)
    x = torch.full((20, 1000), value)
    assert torch.equal(exact_sums(x, layer.pack()), torch.full((20, 33), 1000.0 * weight * value))


@pytest.mark.parametrize("form", ["w4g32", "w4g128", "w4g32z"])
@pytest.mark.parametrize("value", [-127, 127])
def test_extremes_of_4_bits_do_not_saturate(form: str, value: int) -> None:
    layer = weights(form, 33, 256, ones=True)
    for weight in (-8, 7) if layer.zeros is None else (-15, 15):
        layer.values.fill_(weight)
        if layer.zeros is not None:
            layer.zeros.fill_(15 if weight < 0 else 0)
        sums = exact_sums(torch.full((20, 256), value), layer.pack())
        assert torch.equal(sums, torch.full((20, 33), 256.0 * weight * value))


def test_the_most_inputs_do_not_overflow() -> None:
    inputs = 131072
    layer = weights("w8", 1, inputs, ones=True)
    layer.values.fill_(-128)
    sums = exact_sums(torch.full((1, inputs), 127), layer.pack())
    assert sums.item() == -128.0 * 127 * inputs


@by_form
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_layer_is_what_its_quantised_rows_give_in_float64(form: str, dtype: torch.dtype) -> None:
    layer = weights(form, 77, 300)
    random = torch.Generator().manual_seed(1)
    x = torch.randn(9, 300, generator=random).to(dtype)
    bias = torch.randn(77, generator=random)
    rows = quantize(x)
    exact = rows.values[:, :300].double() * rows.scales.double()[:, None]
    expected = exact @ layer.dense().T + bias
    actual = linear(x, layer.pack(), bias)
    assert actual.dtype == dtype
    tolerance = {torch.float32: 2e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}[dtype]
    torch.testing.assert_close(
        actual.double(), expected, rtol=tolerance, atol=tolerance * float(expected.abs().max())
    )


def test_rows_are_quantised_as_the_definition_says() -> None:
    x = torch.randn(6, 333, generator=torch.Generator().manual_seed(2))
    rows = quantize(x)
    peak = x.abs().amax(dim=1)
    assert torch.equal(rows.scales, peak / 127)
    values = torch.round(x * (127 / peak)[:, None])
    assert torch.equal(rows.values[:, :333].float(), values)
    assert int(rows.values[:, 333:].abs().max()) == 0
    padded = rows.values.int().reshape(6, -1, 32)
    assert torch.equal(rows.sums.long(), padded.sum(dim=2))


@by_form
def test_a_row_gives_the_same_bits_alone_and_in_any_batch(form: str, threads: int) -> None:
    layer = weights(form, 130, 576)
    x = torch.randn(61, 576, generator=torch.Generator().manual_seed(3)).bfloat16()
    packed, bias = layer.pack(), torch.randn(130, generator=torch.Generator().manual_seed(4))
    batch = linear(x, packed, bias, torch.empty(61, 130))
    for first, last in [(0, 1), (7, 8), (20, 22), (3, 10), (30, 61)]:
        part = linear(x[first:last], packed, bias, torch.empty(last - first, 130))
        assert torch.equal(part.view(torch.int32), batch[first:last].view(torch.int32))


@by_form
def test_threads_do_not_change_the_bits(form: str, threads: int) -> None:
    layer = weights(form, 420, 320)
    x = torch.randn(100, 320, generator=torch.Generator().manual_seed(5))
    packed = layer.pack()
    shared = linear(x, packed)
    kernels.configure_pool(kernels.PoolConfig())
    assert torch.equal(linear(x, packed).view(torch.int32), shared.view(torch.int32))


@by_form
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_instruction_set_gives_the_bits_of_the_scalar_one(
    form: str, dtype: torch.dtype
) -> None:
    layer = weights(form, 67, 420)
    random = torch.Generator().manual_seed(6)
    x = (torch.randn(45, 420, generator=random) * 10).to(dtype)
    bias = torch.randn(67, generator=random)
    here = linear(x, layer.pack(), bias)
    kernels.select_isa("scalar")
    scalar = linear(x, layer.pack(), bias)
    width = torch.int32 if dtype == torch.float32 else torch.int16
    assert torch.equal(here.view(width), scalar.view(width))


@pytest.mark.parametrize("form", ["w8", "w8g64", "w4g64", "w4g128z"])
@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
@pytest.mark.parametrize("rows", [7, 40])
def test_a_row_that_is_not_finite_gives_nan_and_leaves_the_others(
    form: str, bad: float, rows: int
) -> None:
    packed = weights(form, 40, 200).pack()
    x = torch.randn(rows, 200, generator=torch.Generator().manual_seed(7))
    good = linear(x, packed)
    x[4, 199] = bad
    result = linear(x, packed)
    assert bool(result[4].isnan().all())
    rest = [row for row in range(rows) if row != 4]
    assert torch.equal(result[rest], good[rest])


@pytest.mark.parametrize("value", [0.0, 1e-38, -1e-40])
def test_a_row_of_almost_nothing_gives_the_bias(value: float) -> None:
    packed = weights("w8", 40, 200).pack()
    bias = torch.arange(40.0)
    assert torch.equal(linear(torch.full((1, 200), value), packed, bias)[0], bias)


def test_results_too_large_for_half_precision_are_infinite() -> None:
    layer = weights("w8", 32, 64)
    layer.values.fill_(127)
    layer.scales.fill_(1e3)
    out = linear(torch.ones(1, 64), layer.pack(), out=torch.empty(1, 32, dtype=torch.float16))
    assert bool(out.isinf().all())


@pytest.mark.parametrize("rows", [3, 40])
def test_results_too_small_for_normal_numbers_are_rounded_and_not_flushed(rows: int) -> None:
    layer = weights("w8", 64, 128)
    layer.scales.fill_(1e-41)
    x = torch.randn(rows, 128, generator=torch.Generator().manual_seed(12)).bfloat16()
    here = linear(x, layer.pack())
    assert bool((here != 0).any())
    kernels.select_isa("scalar")
    assert torch.equal(here.view(torch.int16), linear(x, layer.pack()).view(torch.int16))


def test_rows_may_be_a_slice_of_a_wider_tensor_and_so_may_the_result() -> None:
    packed = weights("w8", 45, 100).pack()
    wide = torch.randn(6, 180, generator=torch.Generator().manual_seed(8))
    out = torch.full((6, 64), 5.0)
    linear(wide[:, 40:140], packed, out=out[:, 3:48])
    assert torch.equal(out[:, 3:48], linear(wide[:, 40:140].contiguous(), packed))
    assert torch.equal(out[:, :3], torch.full((6, 3), 5.0))
    assert torch.equal(out[:, 48:], torch.full((6, 16), 5.0))


@in_one_isa
def test_no_rows_give_no_rows() -> None:
    assert linear(torch.empty(0, 100), weights("w8", 45, 100).pack()).shape == (0, 45)


@in_one_isa
def test_leading_dimensions_are_kept() -> None:
    packed = weights("w8", 45, 100).pack()
    x = torch.randn(2, 3, 100, generator=torch.Generator().manual_seed(9))
    assert torch.equal(linear(x, packed), linear(x.reshape(6, 100), packed).reshape(2, 3, 45))


def test_no_rows_are_no_work_in_a_thread_that_never_had_any() -> None:
    packed = weights("w8", 40, 64).pack()
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(linear, torch.empty(0, 64), packed).result().shape == (0, 40)
