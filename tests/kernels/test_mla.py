"""Latent attention against float64, in every instruction set of this CPU."""

import pytest
import torch

from tests.kernels.isas import in_one_isa
from tests.kernels.paged import Sequences, Shape, relative_error, sequences
from tunan.errors import UsageError
from tunan.kernels.kv_cache import CompressedKVCache, PagedKVCache
from tunan.kernels.mla import mla_attention, write_latent

pytestmark = pytest.mark.usefixtures("isa")

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.int8: 1.5e-2}
by_cache = pytest.mark.parametrize("cache_dtype", TOLERANCE, ids=str)
DEEPSEEK = Shape(heads=16, key_heads=1, head_size=576, block_size=16, rope_size=64)
MIXED = [(1, 1), (1, 33), (5, 70), (1, 700), (40, 90)]


def case(cache_dtype: torch.dtype, shape: Shape = DEEPSEEK) -> Sequences:
    dtype = torch.float32 if cache_dtype == torch.float32 else torch.bfloat16
    return sequences(shape, MIXED, cache_dtype, dtype)


def attend(given: Sequences) -> torch.Tensor:
    return mla_attention(
        given.query,
        given.cache,
        given.query_start,
        given.seq_lens,
        given.table,
        scale=given.scale,
    )


@by_cache
def test_decode_and_chunked_prefill(cache_dtype: torch.dtype) -> None:
    given = case(cache_dtype)
    result = attend(given)
    assert result.shape == (48, 16, 512)
    assert relative_error(result, given.expected()) < TOLERANCE[cache_dtype]


@by_cache
@pytest.mark.parametrize("heads", [1, 6, 80])
def test_any_number_of_heads(heads: int, cache_dtype: torch.dtype) -> None:
    given = sequences(Shape(heads, 1, 576, 32, 64), [(1, 70), (2, 20)], cache_dtype)
    assert relative_error(attend(given), given.expected()) < TOLERANCE[torch.int8]


def test_other_ranks() -> None:
    given = case(torch.bfloat16, Shape(8, 1, 320, 16, 64))
    assert relative_error(attend(given), given.expected()) < TOLERANCE[torch.bfloat16]


@by_cache
def test_latent_and_rotary_part_of_different_sizes_keep_their_own_scale(
    cache_dtype: torch.dtype,
) -> None:
    given = case(cache_dtype)
    for i in range(len(MIXED)):
        given.values[i] *= 30  # the rotary part
        write_latent(given.keys[i][:, 0], given.values[i][:, 0], given.cache, given.slots(i))
    given.query[..., 512:] /= 30
    assert relative_error(attend(given), given.expected()) < TOLERANCE[cache_dtype]


@by_cache
def test_a_result_has_the_same_bits_for_every_number_of_threads_and_alone(
    cache_dtype: torch.dtype, threads: int
) -> None:
    given = case(cache_dtype)
    together = attend(given)
    for i in range(len(MIXED)):
        rows = slice(int(given.query_start[i]), int(given.query_start[i + 1]))
        alone = mla_attention(
            given.query[rows],
            given.cache,
            given.query_start[i : i + 2] - given.query_start[i],
            given.seq_lens[i : i + 1],
            given.table[i : i + 1],
            scale=given.scale,
        )
        assert torch.equal(alone, together[rows])
    assert threads


def test_the_bf16_cache_is_what_vllm_keeps() -> None:
    given = case(torch.bfloat16)
    rows = given.cache.tensor.view(-1, 576)[given.slots(2)]
    assert torch.equal(rows, torch.cat([given.keys[2], given.values[2]], -1)[:, 0])


@in_one_isa
def test_a_compressed_row_takes_584_bytes() -> None:
    cache = CompressedKVCache.allocate(2, 1, 16, 576, rope_size=64)
    assert cache.tensor.shape == (2, 1, 16, 584)
    assert PagedKVCache(cache.tensor[:, 0], 576, 64).tensor.shape == cache.tensor.shape


@in_one_isa
def test_a_cache_of_keys_and_values_is_refused() -> None:
    cache = CompressedKVCache.allocate(2, 1, 16, 64)
    with pytest.raises(UsageError, match="not of latents"):
        write_latent(torch.zeros(1, 32), torch.zeros(1, 32), cache, torch.zeros(1).long())
