"""The paged cache: its size, what is written where, and what is refused."""

import pytest
import torch

from tests.kernels.isas import in_one_isa
from tests.kernels.paged import Shape, unwritten_cache
from tunan.errors import UsageError
from tunan.kernels.attention import paged_attention
from tunan.kernels.kv_cache import CompressedKVCache, PagedKVCache, content_bytes
from tunan.kernels.rope import write_cache

pytestmark = pytest.mark.usefixtures("isa")

DTYPES = [torch.float32, torch.bfloat16, torch.int8]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def read_value(cache: PagedKVCache, slot: int, heads: int) -> torch.Tensor:
    """The value at a slot: the attention of a sequence that is this one token."""
    block, offset = divmod(slot, cache.tensor.shape[2])
    query = torch.zeros(1, heads, cache.head_size)
    last = torch.tensor([offset + 1], dtype=torch.int32)
    table = torch.tensor([[block]], dtype=torch.int32)
    start = torch.tensor([0, 1], dtype=torch.int32)
    return paged_attention(query, cache, start, last, table, scale=1.0, window=1)[0]


@in_one_isa
@pytest.mark.parametrize(("head_size", "ratio"), [(64, 1.88), (80, 1.9), (128, 1.93), (256, 1.96)])
def test_int8_holds_at_least_1_85_times_as_many_tokens(head_size: int, ratio: float) -> None:
    wide, narrow = (content_bytes(head_size, dtype) for dtype in (torch.bfloat16, torch.int8))
    assert narrow == 2 * head_size + 8
    assert wide / narrow >= ratio >= 1.85


@in_one_isa
def test_a_latent_row_is_halved_too() -> None:
    assert content_bytes(576, torch.bfloat16, 64) == 1152
    assert content_bytes(576, torch.int8, 64) == 584


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_size", [64, 80, 192, 256])
def test_every_slot_keeps_its_own_value(head_size: int, dtype: torch.dtype) -> None:
    cache = unwritten_cache(Shape(head_size=head_size, block_size=16), 3, dtype)
    slots = torch.randperm(48, generator=torch.Generator().manual_seed(1))
    key, value = normal(48, 2, head_size), normal(48, 2, head_size, seed=2)
    write_cache(key, value, cache, slots)
    for token, slot in enumerate(slots.tolist()):
        step = value[token].abs().amax(-1, keepdim=True) / 127
        close = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.int8: 0.0}[dtype]
        bound = value[token].abs() * close + (0.51 * step if dtype == torch.int8 else 1e-9)
        assert bool(((read_value(cache, slot, 2) - value[token]).abs() <= bound).all())


def test_padding_is_not_written() -> None:
    cache = unwritten_cache(Shape(), 2, torch.int8)
    before = cache.tensor.clone()
    write_cache(normal(3, 2, 64), normal(3, 2, 64), cache, torch.tensor([-1, -1, -5]))
    assert torch.equal(cache.tensor, before)


def test_a_write_touches_its_block_and_head_only() -> None:
    cache = unwritten_cache(Shape(key_heads=3), 4, torch.bfloat16)
    write_cache(normal(2, 3, 64), normal(2, 3, 64), cache, torch.tensor([40, 41]))
    untouched = cache.tensor[[0, 2, 3]]
    assert bool(untouched.isnan().all())
    assert int((~cache.tensor[1].isnan()).sum()) == 2 * 3 * 128


def test_rows_of_zeros_stay_zeros() -> None:
    cache = unwritten_cache(Shape(), 1, torch.int8)
    write_cache(torch.zeros(1, 2, 64), torch.zeros(1, 2, 64), cache, torch.tensor([0]))
    assert not read_value(cache, 0, 2).any()


def test_a_value_that_is_no_number_stays_none() -> None:
    cache = unwritten_cache(Shape(), 1, torch.int8)
    value = normal(1, 2, 64)
    value[0, 1, 5] = float("nan")
    write_cache(normal(1, 2, 64), value, cache, torch.tensor([0]))
    read = read_value(cache, 0, 2)
    assert bool(read[0].isfinite().all())
    assert not bool(read[1].isfinite().any())


def test_keys_and_values_may_be_parts_of_wider_rows() -> None:
    both = normal(5, 3 * 2 * 64).to(torch.bfloat16)
    key, value = (both[:, at : at + 128].view(5, 2, 64) for at in (128, 256))
    slots = torch.arange(5)
    one, other = (unwritten_cache(Shape(), 1, torch.int8) for _ in range(2))
    write_cache(key, value, one, slots)
    write_cache(key.contiguous(), value.contiguous(), other, slots)
    assert torch.equal(one.tensor, other.tensor)


def test_a_compressed_cache_is_int8() -> None:
    assert CompressedKVCache.allocate(4, 2, 32, 64).compressed
    with pytest.raises(UsageError, match="is int8, not"):
        CompressedKVCache(torch.zeros(1, 1, 16, 128, dtype=torch.bfloat16), 64)


@in_one_isa
@pytest.mark.parametrize(
    ("tensor", "head_size", "message"),
    [
        (torch.zeros(2, 2, 32, 136, dtype=torch.int8), 80, "takes 168 bytes"),
        (torch.zeros(2, 2, 20, 128), 64, "block size is 20 tokens"),
        (torch.zeros(2, 2, 16, 144), 72, "head size is 72"),
        (torch.zeros(2, 2, 16, 128, dtype=torch.float16), 64, "float16"),
        (torch.zeros(2, 16, 128), 64, "a KV cache is"),
        (torch.zeros(2, 2, 128, 32).transpose(2, 3), 64, "in pieces"),
    ],
)
def test_a_tensor_of_another_form_is_refused(
    tensor: torch.Tensor, head_size: int, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        PagedKVCache(tensor, head_size)


@in_one_isa
@pytest.mark.parametrize(
    ("key", "slots", "message"),
    [
        (torch.zeros(1, 2, 64), torch.tensor([64]), "goes to slot 64 of 64"),
        (torch.zeros(1, 3, 64), torch.tensor([0]), "the cache takes"),
        (torch.zeros(1, 2, 80), torch.tensor([0]), "the cache takes"),
        (torch.zeros(1, 2, 64), torch.tensor([0, 1]), "slots are"),
        (torch.zeros(1, 2, 64), torch.tensor([0], dtype=torch.int32), "slots are"),
        (torch.zeros(1, 2, 64, dtype=torch.float16), torch.tensor([0]), "float16"),
    ],
)
def test_a_write_that_does_not_fit_is_refused_before_anything_is_written(
    key: torch.Tensor, slots: torch.Tensor, message: str
) -> None:
    cache = unwritten_cache(Shape(), 2, torch.int8)
    before = cache.tensor.clone()
    with pytest.raises(UsageError, match=message):
        write_cache(key, key, cache, slots)
    assert torch.equal(cache.tensor, before)
