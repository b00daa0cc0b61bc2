"""Rotary embedding against float64 and against vLLM's own operator."""

from importlib import import_module

import pytest
import torch

from tests.kernels.isas import in_one_isa
from tests.kernels.paged import Shape, unwritten_cache
from tunan.errors import UsageError
from tunan.kernels.rope import rotate, rotate_and_write, write_cache

pytestmark = pytest.mark.usefixtures("isa")

# One rounding to the type, and a little for cosine and sine that are rounded themselves.
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
by_dtype = pytest.mark.parametrize("dtype", ROUNDING, ids=str)
by_pairing = pytest.mark.parametrize("neox", [True, False], ids=["neox", "interleaved"])


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def angles(rotary: int, positions: int = 300) -> torch.Tensor:
    frequency = 10000.0 ** (-torch.arange(0, rotary, 2) / rotary)
    angle = torch.arange(positions)[:, None] * frequency
    return torch.cat([angle.cos(), angle.sin()], -1)


def rotated(
    x: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, neox: bool
) -> torch.Tensor:
    """float64"""
    rotary = cos_sin.shape[1]
    cosine, sine = cos_sin[positions].double()[:, None].chunk(2, -1)
    result = x.double()
    head = result[..., :rotary].clone()
    first, second = head.chunk(2, -1) if neox else (head[..., ::2], head[..., 1::2])
    pair = (first * cosine - second * sine, second * cosine + first * sine)
    result[..., :rotary] = torch.cat(pair, -1) if neox else torch.stack(pair, -1).flatten(-2)
    return result


@by_dtype
@by_pairing
@pytest.mark.parametrize(("head_size", "rotary"), [(64, 64), (80, 80), (128, 64), (96, 24), (6, 2)])
def test_whole_and_partial_rotation(
    head_size: int, rotary: int, neox: bool, dtype: torch.dtype
) -> None:
    cos_sin, positions = (
        angles(rotary).to(dtype),
        torch.randperm(300, generator=torch.Generator().manual_seed(5))[:37],
    )
    query, key = (normal(37, heads, head_size).to(dtype) for heads in (5, 2))
    expected = [rotated(x, positions, cos_sin, neox) for x in (query, key)]
    rotate(positions, query, key, cos_sin, neox=neox)
    for result, wanted in zip((query, key), expected, strict=True):
        torch.testing.assert_close(
            result.double(), wanted, rtol=ROUNDING[dtype], atol=max(1e-6, ROUNDING[dtype] / 10)
        )


@by_dtype
@by_pairing
def test_in_steps_it_has_the_bits_of_operators_one_after_the_other(
    neox: bool, dtype: torch.dtype
) -> None:
    cos_sin, positions = angles(64).to(dtype), torch.arange(37) * 7
    query, key = normal(37, 5, 64).to(dtype), normal(37, 1, 64, seed=1).to(dtype)
    cosine, sine = cos_sin[positions][:, None].chunk(2, -1)
    expected = []
    for x in (query, key):
        if neox:
            first, second = x.chunk(2, -1)
            pair = first * cosine + -second * sine, second * cosine + first * sine
            expected.append(torch.cat(pair, -1))
        else:
            first, second = x[..., ::2], x[..., 1::2]
            pair = first * cosine + -second * sine, second * cosine + first * sine
            expected.append(torch.stack(pair, -1).flatten(-2))
    rotate(positions, query, key, cos_sin, neox=neox, in_steps=True)
    assert torch.equal(query, expected[0])
    assert torch.equal(key, expected[1])


@by_pairing
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_same_as_vllm(neox: bool, dtype: torch.dtype) -> None:
    ops = import_module("vllm._custom_ops")
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    cos_sin, positions = angles(64).to(dtype), torch.arange(250, 287)
    query, key = normal(37, 9 * 64).to(dtype), normal(37, 3 * 64, seed=1).to(dtype)
    ours = [x.clone().view(37, -1, 64) for x in (query, key)]
    rotate(positions, ours[0], ours[1], cos_sin, neox=neox)
    ops.rotary_embedding(positions, query, key, 64, cos_sin, neox)
    for result, theirs in zip(ours, (query, key), strict=True):
        # It may fuse the multiplication and the addition: one step of the type apart at most.
        torch.testing.assert_close(
            result.flatten(1), theirs, rtol=ROUNDING[dtype], atol=ROUNDING[dtype] / 5
        )


def test_queries_alone_and_heads_apart() -> None:
    """DeepSeek's queries: the rotary part is the last 64 of 192, the key has one head."""
    query, cos_sin = normal(7, 4, 192), angles(64)
    positions = torch.arange(7)
    expected = query.double()
    expected[..., 128:] = rotated(query[..., 128:], positions, cos_sin, False)
    rotate(positions, query[..., 128:], None, cos_sin, neox=False)
    torch.testing.assert_close(query.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_rotating_and_writing_at_once_is_the_same_as_one_by_one(
    cache_dtype: torch.dtype, threads: int
) -> None:
    query, key, value = (normal(50, heads, 64).to(torch.bfloat16) for heads in (4, 2, 2))
    cos_sin, positions, slots = angles(64), torch.arange(50), torch.arange(50).flip(0)
    slots[3] = -1
    one, other = (unwritten_cache(Shape(), 2, cache_dtype) for _ in range(2))
    apart = query.clone(), key.clone()
    rotate(positions, *apart, cos_sin)
    write_cache(apart[1], value, other, slots)
    rotate_and_write(positions, query, key, value, cos_sin, one, slots)
    assert torch.equal(query, apart[0])
    assert torch.equal(key, apart[1])
    assert torch.equal(one.tensor.view(torch.int8), other.tensor.view(torch.int8))
    assert threads


@in_one_isa
@pytest.mark.parametrize(
    ("positions", "cos_sin", "message"),
    [
        (torch.tensor([300]), angles(64), "at position 300 of 300"),
        (torch.tensor([-1]), angles(64), "at position -1 of 300"),
        (torch.tensor([0, 1]), angles(64), "positions are"),
        (torch.tensor([0]), angles(96), "96 elements of heads of 64"),
        (torch.tensor([0]), angles(64)[:, :33].contiguous(), "33 elements"),
        (torch.tensor([0]), angles(64).double(), "float64"),
    ],
)
def test_a_rotation_that_does_not_fit_is_refused_before_anything_is_written(
    positions: torch.Tensor, cos_sin: torch.Tensor, message: str
) -> None:
    query = normal(1, 2, 64)
    before = query.clone()
    with pytest.raises(UsageError, match=message):
        rotate(positions, query, None, cos_sin)
    assert torch.equal(query, before)
