"""Integers and scales of quantised weights against exact arithmetic."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tunan.checkpoint.quantize.rounding import (
    STEP,
    STEPS,
    restored,
    round_to_scales,
    scales_of,
)
from tunan.checkpoint.quantize.scheme import WeightScheme

INT8 = WeightScheme()
INT4 = WeightScheme(bits=4, group=32, scale_dtype="BF16")


def heavy_tailed(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """Normal weights, every row with a few that are much larger, as trained models have."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator)
    weight[:, :: max(1, columns // 3)] *= 6 * torch.rand(rows, 1, generator=generator)
    return weight


def squared_error(weight: torch.Tensor, scales: torch.Tensor, scheme: WeightScheme) -> torch.Tensor:
    """Of each group, in float64."""
    kept = restored(round_to_scales(weight, scales, scheme), scales).double()
    difference = kept - weight.double()
    return difference.view(len(weight), scales.shape[1], -1).square().sum(-1)


@given(
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=40),
    st.sampled_from([4, 8]),
)
@settings(max_examples=200, deadline=None)
def test_an_integer_is_the_nearest_multiple_of_the_scale(values: list[float], bits: int) -> None:
    scheme = WeightScheme(bits=bits)
    weight = torch.tensor([values])
    scales = scales_of(weight, scheme)
    integers = round_to_scales(weight, scales, scheme)[0].tolist()
    scale = Fraction(scales.item())
    for value, integer in zip(weight[0].tolist(), integers, strict=True):
        exact = Fraction(value) / scale
        nearest = max(scheme.lowest, min(scheme.limit, round(exact)))
        # The division is float32: a value within its rounding of a half may go either way.
        near_half = abs(abs(exact - integer) - Fraction(1, 2)) < Fraction(1, 1 << 15)
        assert integer == nearest or near_half


@pytest.mark.parametrize("scheme", [INT8, INT4], ids=["int8", "int4"])
@pytest.mark.parametrize("clipping", [False, True])
def test_scales_are_positive_and_exact_in_bfloat16(scheme: WeightScheme, clipping: bool) -> None:
    scheme = WeightScheme(scheme.bits, scheme.group, clipping)
    weight = heavy_tailed(50, 96)
    weight[7] = 0
    weight[8] *= 1e-30
    scales = scales_of(weight, scheme)
    assert scales.shape == (50, scheme.groups(96))
    assert (scales > 0).all()
    assert torch.equal(scales, scales.to(torch.bfloat16).float())


def test_a_row_of_zeros_stays_one() -> None:
    weight = torch.zeros(2, 64)
    scales = scales_of(weight, INT8)
    assert not round_to_scales(weight, scales, INT8).any()
    assert torch.equal(scales, torch.ones(2, 1))


def test_without_clipping_the_largest_value_becomes_the_largest_integer() -> None:
    scheme = WeightScheme(clipping=False)
    weight = heavy_tailed(200, 64)
    scales = scales_of(weight, scheme)
    # To the 2^-9 by which rounding it to bfloat16 may move a scale.
    torch.testing.assert_close(scales[:, 0], weight.abs().amax(1) / 127, rtol=2**-8, atol=0)
    assert (round_to_scales(weight, scales, scheme).abs().amax(1) >= 126).all()


@pytest.mark.parametrize("scheme", [INT8, INT4], ids=["int8", "int4"])
@pytest.mark.parametrize("seed", range(3))
def test_clipping_finds_the_best_of_all_steps_or_nearly(scheme: WeightScheme, seed: int) -> None:
    """The search may stop early at a local minimum; it never loses to no clipping."""
    weight = heavy_tailed(64, 256, seed)
    found = squared_error(weight, scales_of(weight, scheme), scheme)
    groups = weight.view(64, scheme.groups(256), -1).abs().amax(-1) / scheme.limit
    tried = [
        squared_error(weight, (groups * (1 - STEP * k)).to(torch.bfloat16).float(), scheme)
        for k in range(STEPS + 1)
    ]
    assert (found <= tried[0] * (1 + 1e-5)).all()
    best = torch.stack(tried).amin(0)
    assert (found >= best * (1 - 1e-5)).all()
    assert found.sum() <= best.sum() * 1.02


def test_clipping_pays_where_one_weight_is_far_from_the_others() -> None:
    weight = heavy_tailed(64, 256)
    plain = scales_of(weight, WeightScheme(bits=4, clipping=False))
    best = scales_of(weight, WeightScheme(bits=4))
    errors = [squared_error(weight, s, WeightScheme(bits=4)).sum() for s in (plain, best)]
    assert errors[1] < 0.9 * errors[0]


@pytest.mark.parametrize("columns", [32, 96, 101 * 32])
@pytest.mark.parametrize("scheme", [INT8, INT4], ids=["int8", "int4"])
def test_a_row_s_scale_does_not_depend_on_the_rows_beside_it(
    scheme: WeightScheme, columns: int
) -> None:
    weight = heavy_tailed(17, columns)
    whole = scales_of(weight, scheme)
    apart = [scales_of(weight[a:b], scheme) for a, b in ((0, 1), (1, 5), (5, 17))]
    assert torch.equal(whole, torch.cat(apart))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_any_float_are_taken_as_they_are(dtype: torch.dtype) -> None:
    weight = heavy_tailed(9, 64).to(dtype)
    assert torch.equal(scales_of(weight, INT8), scales_of(weight.float(), INT8))
