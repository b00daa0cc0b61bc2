"""Paged attention against float64, in every instruction set of this CPU.

Tolerances are relative L2 errors on normal data: float32 1e-6; bfloat16 4e-3 (its own rounding of
the result is 1.7e-3); int8 1.5e-2, most of it from the rounding of keys and queries to 8 bits.
"""

import ctypes
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.kernels.isas import in_one_isa
from tests.kernels.paged import Sequences, Shape, relative_error, sequences
from tunan.errors import UsageError
from tunan.kernels import PoolConfig, configure_pool, library
from tunan.kernels.attention import paged_attention
from tunan.kernels.kv_cache import PagedKVCache

pytestmark = pytest.mark.usefixtures("isa")

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.int8: 1.5e-2}
by_cache = pytest.mark.parametrize("cache_dtype", TOLERANCE, ids=str)
MIXED = [(1, 1), (1, 33), (5, 70), (1, 1300), (37, 100), (130, 600), (17, 17)]


def query_dtype(cache_dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if cache_dtype == torch.float32 else torch.bfloat16


def case(
    shape: Shape, tokens: list[tuple[int, int]], cache_dtype: torch.dtype, seed: int = 0
) -> Sequences:
    return sequences(shape, tokens, cache_dtype, query_dtype(cache_dtype), seed)


@by_cache
@pytest.mark.parametrize("head_size", [64, 80, 128, 192, 256])
def test_decode_and_prefill_in_one_call(head_size: int, cache_dtype: torch.dtype) -> None:
    given = case(Shape(head_size=head_size), MIXED, cache_dtype)
    assert relative_error(given.attend(), given.expected()) < TOLERANCE[cache_dtype]


@by_cache
@pytest.mark.parametrize(
    ("heads", "key_heads"), [(8, 8), (9, 3), (14, 2), (7, 1), (72, 1)], ids=lambda n: f"{n}"
)
def test_heads_that_share_a_key_head(heads: int, key_heads: int, cache_dtype: torch.dtype) -> None:
    given = case(Shape(heads, key_heads), [(1, 90), (3, 40)], cache_dtype)
    assert relative_error(given.attend(), given.expected()) < TOLERANCE[cache_dtype]


@by_cache
@pytest.mark.parametrize("block_size", [48, 128])
def test_block_sizes(block_size: int, cache_dtype: torch.dtype) -> None:
    given = case(Shape(block_size=block_size), MIXED, cache_dtype)
    assert relative_error(given.attend(), given.expected()) < TOLERANCE[cache_dtype]


@by_cache
def test_every_length_around_the_tiles(cache_dtype: torch.dtype) -> None:
    lengths = [*range(1, 36), *range(60, 70), *range(510, 516)]
    given = case(Shape(2, 1), [(1, n) for n in lengths], cache_dtype)
    error = (given.attend().double() - given.expected()).flatten(1).norm(dim=1)
    # One token at a time: a wrong tail must not hide among many right ones.
    assert (
        float((error / given.expected().flatten(1).norm(dim=1)).max())
        < 3 * (TOLERANCE[cache_dtype])
    )


@by_cache
@pytest.mark.parametrize("window", [1, 50, 513])
def test_a_sliding_window_counts_the_query_itself(window: int, cache_dtype: torch.dtype) -> None:
    given = case(Shape(), MIXED, cache_dtype)
    error = relative_error(given.attend(window=window), given.expected(window=window))
    assert error < TOLERANCE[cache_dtype]


@by_cache
def test_softcap(cache_dtype: torch.dtype) -> None:
    given = case(Shape(), MIXED, cache_dtype)
    error = relative_error(given.attend(softcap=0.7), given.expected(softcap=0.7))
    assert error < TOLERANCE[cache_dtype]


@by_cache
def test_alibi(cache_dtype: torch.dtype) -> None:
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.01])
    given = case(Shape(), MIXED, cache_dtype)
    error = relative_error(given.attend(alibi=slopes), given.expected(alibi=slopes))
    assert error < TOLERANCE[cache_dtype]


@by_cache
def test_attention_to_later_tokens_too(cache_dtype: torch.dtype) -> None:
    given = case(Shape(), MIXED, cache_dtype)
    error = relative_error(given.attend(causal=False), given.expected(causal=False))
    assert error < TOLERANCE[cache_dtype]


@by_cache
def test_a_sequence_without_query_tokens_is_passed_over(cache_dtype: torch.dtype) -> None:
    given = case(Shape(), [(0, 40), (2, 20), (0, 0), (1, 7), (0, 3)], cache_dtype)
    assert relative_error(given.attend(), given.expected()) < TOLERANCE[cache_dtype]
    nothing = case(Shape(), [], cache_dtype)
    assert nothing.attend().shape == (0, 4, 64)


@by_cache
def test_large_scores_do_not_overflow(cache_dtype: torch.dtype) -> None:
    given = case(Shape(), [(3, 200)], cache_dtype)
    given.query *= 100
    error = relative_error(given.attend(), given.expected())
    # Scores of hundreds have their last bit at 1e-5 or, in int8, pick a neighbour now and then.
    assert error < {torch.float32: 2e-4, torch.bfloat16: 8e-3, torch.int8: 0.3}[cache_dtype]


@by_cache
def test_a_result_has_the_same_bits_for_every_number_of_threads(
    cache_dtype: torch.dtype, threads: int
) -> None:
    given = case(Shape(), [*MIXED, (1, 5000)], cache_dtype)
    result = given.attend()
    configure_pool(PoolConfig(threads=1))
    assert torch.equal(result, given.attend())
    assert threads


@by_cache
@pytest.mark.parametrize("window", [0, 100])
def test_a_result_has_the_same_bits_alone_and_in_a_batch(
    cache_dtype: torch.dtype, window: int
) -> None:
    given = case(Shape(), MIXED, cache_dtype)
    together = given.attend(window=window)
    configure_pool(PoolConfig(threads=3))
    for i in range(len(MIXED)):
        alone = paged_attention(
            given.query[given.query_start[i] : given.query_start[i + 1]],
            given.cache,
            given.query_start[i : i + 2] - given.query_start[i],
            given.seq_lens[i : i + 1],
            given.table[i : i + 1],
            scale=given.scale,
            window=window,
        )
        assert torch.equal(alone, together[given.query_start[i] : given.query_start[i + 1]])
    configure_pool(PoolConfig())


@by_cache
def test_a_prompt_in_chunks_has_the_same_bits_as_in_one(cache_dtype: torch.dtype) -> None:
    given = case(Shape(6, 2), [(700, 700)], cache_dtype)
    whole = given.attend()
    for chunk in (1, 7, 64, 300):
        for start in range(0, 700, chunk) if chunk > 1 else range(0, 700, 97):
            end = min(start + chunk, 700)
            part = paged_attention(
                given.query[start:end],
                given.cache,
                torch.tensor([0, end - start], dtype=torch.int32),
                torch.tensor([end], dtype=torch.int32),
                given.table,
                scale=given.scale,
            )
            assert torch.equal(part, whole[start:end])


@by_cache
@pytest.mark.parametrize("value", [math.nan, math.inf], ids=str)
@pytest.mark.parametrize("length", [20, 1300])
def test_a_query_that_is_no_number_gives_nan_in_its_own_head_alone(
    length: int, value: float, cache_dtype: torch.dtype
) -> None:
    given = case(Shape(), [(2, length), (1, 30)], cache_dtype)
    expected = given.attend()
    given.query[1, 2, 5] = value
    result = given.attend()
    assert result[1, 2].isnan().all()
    result[1, 2] = expected[1, 2]
    assert torch.equal(result, expected)


def test_queries_and_outputs_may_be_parts_of_wider_rows() -> None:
    given = case(Shape(), MIXED, torch.bfloat16)
    tokens, heads, size = given.query.shape
    wide = torch.zeros(tokens, heads * size + 40, dtype=torch.bfloat16)
    wide[:, : heads * size] = given.query.flatten(1)
    out = torch.zeros(tokens, heads * size + 8, dtype=torch.bfloat16)
    expected = given.attend()
    given.query = wide[:, : heads * size].view(tokens, heads, size)
    given.attend(out=out[:, : heads * size].view(tokens, heads, size))
    assert torch.equal(out[:, : heads * size], expected.flatten(1))
    assert not out[:, heads * size :].any()


def test_the_cache_may_be_one_layer_of_many() -> None:
    given = case(Shape(), MIXED, torch.int8)
    blocks, *inner = given.cache.tensor.shape
    layers = torch.full((blocks, 3, *inner), 77, dtype=torch.int8)
    layers[:, 1] = given.cache.tensor
    expected = given.attend()
    given.cache = PagedKVCache(layers[:, 1], 64)
    assert torch.equal(given.attend(), expected)


def broken(given: Sequences, **changes: object) -> None:
    call = {
        "query": given.query,
        "cache": given.cache,
        "query_start": given.query_start,
        "seq_lens": given.seq_lens,
        "block_table": given.table,
        "scale": given.scale,
    }
    paged_attention(**{**call, **changes})  # type: ignore[arg-type]


def numbers(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@in_one_isa
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_table": numbers(9, 0, 0)[None]}, "names block 9 of 5"),
        ({"block_table": numbers(0, -1, 0)[None]}, "names block -1 of 5"),
        ({"block_table": numbers(0, 1)[None]}, "needs 3 blocks, its table has 2"),
        ({"seq_lens": numbers(1)}, "is 1 tokens long but has 2 queries"),
        ({"seq_lens": numbers(2**31 - 1)}, "is 2147483647 tokens long; at most 1073741824"),
        ({"seq_lens": numbers(2**30)}, "needs 33554432 blocks, its table has 3"),
        ({"query_start": numbers(0, 3)}, "query tokens 0 to 3 of 2"),
        ({"query_start": numbers(2, 0)}, "query tokens 2 to 0 of 2"),
        ({"query_start": numbers(-1, 2)}, "query tokens -1 to 2 of 2"),
        ({"query": torch.zeros(2, 3, 64)}, "3 query heads do not divide among 2"),
        ({"query": torch.zeros(2, 4, 80)}, "head size 80 for a cache of 64"),
        ({"query": torch.zeros(2, 4, 64, dtype=torch.float16)}, "float16"),
        ({"seq_lens": torch.tensor([80])}, "seq_lens is"),
        ({"alibi": torch.zeros(3)}, "slopes are"),
        ({"window": -1}, "window -1"),
        ({"softcap": -1.0}, "softcap -1"),
        ({"out": torch.zeros(2, 4, 32)}, "the output is"),
    ],
)
def test_a_call_that_does_not_fit_is_refused(changes: dict[str, object], message: str) -> None:
    given = case(Shape(), [(2, 80)], torch.bfloat16)
    with pytest.raises(UsageError, match=message) as caught:
        broken(given, **changes)
    assert "\n" not in str(caught.value)


@in_one_isa
def test_the_library_itself_refuses_a_cache_that_ends_too_early() -> None:
    given = case(Shape(), [(1, 80)], torch.bfloat16)
    argument = given.cache.argument()
    argument.bytes -= 1
    attention = library.function("tunan_attention", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    call = ctypes.create_string_buffer(256)
    with pytest.raises(UsageError, match="its last block ends at byte"):
        library.check(attention(call, ctypes.byref(argument)))


@in_one_isa
@pytest.mark.parametrize("change", [{"block_stride": 2**62}, {"head_stride": 2**63 - 4}], ids=str)
def test_the_library_itself_refuses_a_cache_whose_end_is_beyond_64_bits(
    change: dict[str, int],
) -> None:
    given = case(Shape(), [(1, 80)], torch.bfloat16)
    argument = given.cache.argument()
    for name, stride in change.items():
        setattr(argument, name, stride)
    attention = library.function("tunan_attention", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    call = ctypes.create_string_buffer(256)
    with pytest.raises(UsageError, match="bytes apart"):
        library.check(attention(call, ctypes.byref(argument)))


def test_no_tokens_are_no_work_in_a_thread_that_never_had_any() -> None:
    cache = PagedKVCache(torch.zeros(1, 1, 16, 32), 16)
    none = torch.zeros(0, dtype=torch.int32)
    configure_pool(PoolConfig(2))
    try:
        with ThreadPoolExecutor(1) as thread:
            start, table = torch.zeros(1, dtype=torch.int32), none.view(0, 1)
            query = torch.empty(0, 1, 16)
            attended = thread.submit(paged_attention, query, cache, start, none, table, scale=1.0)
            assert attended.result().shape == (0, 1, 16)
    finally:
        configure_pool(PoolConfig())
