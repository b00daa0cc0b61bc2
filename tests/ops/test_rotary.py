"""Rotary application: the three layouts against what they are defined by."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tunan.ops import rotary


def _angles(tokens: int, size: int) -> torch.Tensor:
    frequencies = 10000.0 ** (-torch.arange(0, size, 2) / size)
    return torch.arange(tokens)[:, None] * frequencies


def _rotated_by_complex_numbers(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Neighbours of x as complex numbers, turned by the angles."""
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.polar(  # type: ignore[no-untyped-call]
        torch.ones_like(angles), angles
    )
    return torch.view_as_real(turned).flatten(-2)


_SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 6), st.integers(1, 32))


@settings(max_examples=25, deadline=None)
@given(shape=_SHAPES, seed=st.integers(0, 99))
def test_pairs_are_turned_as_complex_numbers_are(shape: tuple[int, ...], seed: int) -> None:
    batch, heads, tokens, pairs = shape
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, heads, tokens, 2 * pairs, generator=generator)
    angles = _angles(tokens, 2 * pairs)
    doubled = angles.repeat_interleave(2, -1)[None, None]
    torch.testing.assert_close(
        rotary.pairs(x, doubled.cos(), doubled.sin()), _rotated_by_complex_numbers(x, angles)
    )


@settings(max_examples=25, deadline=None)
@given(shape=_SHAPES, seed=st.integers(0, 99))
def test_sorting_into_halves_gives_the_same_numbers_in_another_order(
    shape: tuple[int, ...], seed: int
) -> None:
    batch, heads, tokens, pairs = shape
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, heads, tokens, 2 * pairs, generator=generator)
    angles = _angles(tokens, 2 * pairs)
    halves = torch.cat((angles, angles), -1)[None, None]
    expected = _rotated_by_complex_numbers(x, angles)
    torch.testing.assert_close(
        rotary.to_half(x, halves.cos(), halves.sin()),
        torch.cat((expected[..., ::2], expected[..., 1::2]), -1),
    )


@pytest.mark.parametrize("rotate", [rotary.half, rotary.to_half, rotary.pairs])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_the_result_has_the_shape_and_dtype_of_the_input_and_keeps_its_length(
    rotate: Any, dtype: torch.dtype
) -> None:
    x = torch.randn(2, 3, 4, 8).to(dtype)
    angles = torch.full((1, 1, 4, 8), 0.7)
    turned = rotate(x, angles.cos().to(dtype), angles.sin().to(dtype))
    assert (turned.shape, turned.dtype) == (x.shape, x.dtype)
    torch.testing.assert_close(
        turned.float().norm(dim=-1), x.float().norm(dim=-1), rtol=2e-2, atol=2e-2
    )
