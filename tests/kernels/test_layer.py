"""A decoder layer in one call against its operators one by one, bit for bit."""

import ctypes
from dataclasses import replace

import pytest
import torch

from tests.kernels.isas import in_one_isa
from tests.kernels.paged import Shape, unwritten_cache
from tunan.errors import UsageError
from tunan.kernels import library
from tunan.kernels.attention import paged_attention
from tunan.kernels.kv_cache import PagedKVCache
from tunan.kernels.layer import (
    Batch,
    LayerWeights,
    decoder_layer,
    half_functions,
    step_argument,
)
from tunan.kernels.linear import PackedLinear, linear, linear_quantized, pack_w8
from tunan.kernels.norm import rms_norm_quantized, swiglu_quantized
from tunan.kernels.rope import rotate_and_write

pytestmark = pytest.mark.usefixtures("isa")

HEADS, KEY_HEADS, SIZE, HIDDEN, INTERMEDIATE = 6, 2, 64, 200, 330
BF16 = torch.bfloat16


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def packed(outputs: int, inputs: int, seed: int) -> PackedLinear:
    made = torch.Generator().manual_seed(seed)
    values = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8, generator=made)
    return pack_w8(values, torch.full((outputs,), inputs**-0.5 / 70))


def layer(dtype: torch.dtype = BF16, *, biased: bool = False) -> LayerWeights:
    frequency = 10000.0 ** (-torch.arange(0, SIZE, 2) / SIZE)
    angle = torch.arange(200)[:, None] * frequency
    rows = (HEADS + 2 * KEY_HEADS) * SIZE
    return LayerWeights(
        input_norm=normal(HIDDEN, seed=1).to(dtype),
        post_norm=normal(HIDDEN, seed=2).to(dtype),
        qkv=packed(rows, HIDDEN, 3),
        output=packed(HIDDEN, HEADS * SIZE, 4),
        gate_up=packed(2 * INTERMEDIATE, HIDDEN, 5),
        down=packed(HIDDEN, INTERMEDIATE, 6),
        cos_sin=torch.cat([angle.cos(), angle.sin()], -1).to(dtype),
        heads=HEADS,
        key_heads=KEY_HEADS,
        head_size=SIZE,
        epsilon=1e-5,
        scale=SIZE**-0.5,
        qkv_bias=normal(rows, seed=7) if biased else None,
        output_bias=normal(HIDDEN, seed=8) if biased else None,
    )


def batch(queries: list[int]) -> Batch:
    """Prompts of these lengths, two blocks each."""
    positions = torch.cat([torch.arange(n) for n in queries])
    sequence = torch.cat([torch.full((n,), i) for i, n in enumerate(queries)])
    lengths = torch.tensor(queries, dtype=torch.int32)
    table = torch.arange(2 * len(queries), dtype=torch.int32).view(-1, 2)
    start = torch.tensor([0, *queries]).cumsum(0).to(torch.int32)
    return Batch(positions, sequence * 64 + positions, start, lengths, table)


def one_by_one(
    w: LayerWeights,
    cache: PagedKVCache,
    step: Batch,
    hidden: torch.Tensor,
    residual: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, dtype = hidden.shape[0], hidden.dtype
    normed = rms_norm_quantized(hidden, w.input_norm, w.epsilon, residual)
    residual = hidden.clone() if residual is None else residual
    qkv = linear_quantized(
        normed, w.qkv, torch.empty(tokens, w.qkv.outputs, dtype=dtype), w.qkv_bias
    )
    sizes = [HEADS * SIZE, KEY_HEADS * SIZE, KEY_HEADS * SIZE]
    query, key, value = (x.view(tokens, -1, SIZE) for x in torch.split(qkv, sizes, -1))
    rotate_and_write(step.positions, query, key, value, w.cos_sin, cache, step.slots)
    attended = paged_attention(
        query, cache, step.query_start, step.seq_lens, step.block_table, scale=w.scale
    )
    hidden = linear(attended.flatten(1), w.output, w.output_bias)
    normed = rms_norm_quantized(hidden, w.post_norm, w.epsilon, residual)
    wide = linear_quantized(normed, w.gate_up, torch.empty(tokens, 2 * INTERMEDIATE, dtype=dtype))
    out = torch.empty(tokens, HIDDEN, dtype=dtype)
    return linear_quantized(swiglu_quantized(wide), w.down, out), residual


@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=str)
@pytest.mark.parametrize("cache_dtype", [torch.float32, BF16, torch.int8], ids=str)
@pytest.mark.parametrize("first", [False, True])
def test_one_call_has_the_bits_of_its_operators(
    first: bool, cache_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    weights, step = layer(dtype, biased=True), batch([1, 40, 7])
    caches = [unwritten_cache(Shape(HEADS, KEY_HEADS, SIZE), 6, cache_dtype) for _ in range(2)]
    hidden, residual = normal(48, HIDDEN, seed=9).to(dtype), normal(48, HIDDEN, seed=10).to(dtype)
    expected = one_by_one(weights, caches[0], step, hidden, None if first else residual.clone())
    decoder_layer(weights, caches[1], step, hidden, residual, first=first)
    assert torch.equal(hidden, expected[0])
    assert torch.equal(residual, expected[1])
    written = [cache.tensor.view(torch.int8) for cache in caches]
    assert torch.equal(*written)


@pytest.mark.parametrize("first", [False, True])
def test_its_halves_one_after_the_other_have_its_bits(first: bool) -> None:
    weights, step = layer(biased=True), batch([1, 40, 7])
    hidden, residual = normal(48, HIDDEN, seed=9).to(BF16), normal(48, HIDDEN, seed=10).to(BF16)
    expected = hidden.clone(), residual.clone()
    caches = [unwritten_cache(Shape(HEADS, KEY_HEADS, SIZE), 6, BF16) for _ in range(2)]
    decoder_layer(weights, caches[0], step, *expected, first=first)
    argument = step_argument(hidden, residual, **vars(step), first=first)
    attention, mlp = half_functions()
    at, cache = ctypes.byref(argument), caches[1].argument()
    library.check(attention(ctypes.byref(weights.argument), ctypes.byref(cache), at))
    library.check(mlp(ctypes.byref(weights.argument), at))
    assert torch.equal(hidden, expected[0])
    assert torch.equal(residual, expected[1])


def test_a_sequence_alone_has_the_bits_it_has_in_a_batch(threads: int) -> None:
    weights = layer()
    hidden, residual = normal(48, HIDDEN, seed=9).to(BF16), normal(48, HIDDEN, seed=10).to(BF16)
    together = hidden.clone(), residual.clone()
    cache = unwritten_cache(Shape(HEADS, KEY_HEADS, SIZE), 6, torch.int8)
    decoder_layer(weights, cache, batch([1, 40, 7]), *together)
    alone = hidden[1:41].contiguous(), residual[1:41].contiguous()
    decoder_layer(weights, cache, batch([40]), *alone)
    assert torch.equal(alone[0], together[0][1:41])
    assert torch.equal(alone[1], together[1][1:41])
    assert threads


def test_no_tokens_are_no_work() -> None:
    nothing = torch.zeros(0, HIDDEN, dtype=BF16)
    cache = unwritten_cache(Shape(HEADS, KEY_HEADS, SIZE), 1, torch.int8)
    decoder_layer(layer(), cache, batch([0]), nothing, nothing.clone())


@in_one_isa
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 4}, "qkv is packed 640 x 200; 512 x 200 is needed"),
        ({"key_heads": 3}, "3 key heads of 64 for a cache of 2"),
        ({"key_heads": 4}, "6 heads and 4 of keys"),
    ],
)
def test_a_layer_that_does_not_fit_is_refused(changes: dict[str, int], message: str) -> None:
    weights = replace(layer(), **changes)  # type: ignore[arg-type]
    cache = unwritten_cache(Shape(HEADS, KEY_HEADS, SIZE), 2, torch.int8)
    x = torch.zeros(1, HIDDEN, dtype=BF16)
    with pytest.raises(UsageError, match=message):
        decoder_layer(weights, cache, batch([1]), x, x.clone())


@in_one_isa
def test_activations_of_another_type_or_shape_are_refused() -> None:
    cache = unwritten_cache(Shape(HEADS, KEY_HEADS, SIZE), 2, torch.int8)
    x = torch.zeros(1, HIDDEN)
    with pytest.raises(UsageError, match="hidden is"):
        decoder_layer(layer(), cache, batch([1]), x, x.clone())
