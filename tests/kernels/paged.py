"""Sequences in a paged cache with shuffled blocks, and attention to them in float64."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from tunan.kernels.attention import paged_attention
from tunan.kernels.kv_cache import PagedKVCache, content_bytes
from tunan.kernels.rope import write_cache


@dataclass(frozen=True)
class Shape:
    """Heads and their size; rope_size for a latent cache."""

    heads: int = 4
    key_heads: int = 2
    head_size: int = 64
    block_size: int = 32
    rope_size: int = 0

    @property
    def value_size(self) -> int:
        return self.head_size - self.rope_size


@dataclass
class Sequences:
    """`queries[i]` query tokens are the last of `lengths[i]`; keys are [tokens, heads, size]."""

    shape: Shape
    queries: list[int]
    lengths: list[int]
    dtype: torch.dtype
    cache_dtype: torch.dtype
    query: torch.Tensor = field(init=False)
    keys: list[torch.Tensor] = field(init=False)
    values: list[torch.Tensor] = field(init=False)
    table: torch.Tensor = field(init=False)
    cache: PagedKVCache = field(init=False)
    seed: int = 0

    def __post_init__(self) -> None:
        shape, made = self.shape, torch.Generator().manual_seed(self.seed)
        sizes = (shape.head_size, shape.head_size)
        if shape.rope_size:
            sizes = (shape.value_size, shape.rope_size)
        self.keys, self.values = (
            [
                torch.randn(n, shape.key_heads, size, generator=made).to(self.dtype)
                for n in self.lengths
            ]
            for size in sizes
        )
        tokens = sum(self.queries)
        self.query = torch.randn(tokens, shape.heads, shape.head_size, generator=made)
        self.query = self.query.to(self.dtype)
        blocks = [-(-n // shape.block_size) for n in self.lengths]
        self.table = torch.full((len(blocks), max([1, *blocks])), -1, dtype=torch.int32)
        free = torch.randperm(sum(blocks) + 2, generator=made).to(torch.int32)
        for row, count in zip(self.table, blocks, strict=True):
            row[:count], free = free[:count], free[count:]
        self.cache = unwritten_cache(shape, sum(blocks) + 2, self.cache_dtype)
        for i in range(len(self.lengths)):
            write_cache(self.keys[i], self.values[i], self.cache, self.slots(i))

    def slots(self, i: int) -> torch.Tensor:
        token = torch.arange(self.lengths[i])
        size = self.shape.block_size
        return self.table[i][token // size].long() * size + token % size

    @property
    def query_start(self) -> torch.Tensor:
        return torch.tensor([0, *self.queries]).cumsum(0).to(torch.int32)

    @property
    def seq_lens(self) -> torch.Tensor:
        return torch.tensor(self.lengths, dtype=torch.int32)

    @property
    def scale(self) -> float:
        return float(self.shape.head_size**-0.5)

    def attend(self, **options: object) -> torch.Tensor:
        return paged_attention(
            self.query,
            self.cache,
            self.query_start,
            self.seq_lens,
            self.table,
            scale=self.scale,
            **options,  # type: ignore[arg-type]
        )

    def expected(
        self,
        window: int = 0,
        softcap: float = 0.0,
        alibi: torch.Tensor | None = None,
        causal: bool = True,
    ) -> torch.Tensor:
        """float64 [tokens, heads, value_size]."""
        return torch.cat(
            [self._expected(i, window, softcap, alibi, causal) for i in range(len(self.lengths))]
        )

    def _expected(
        self, i: int, window: int, softcap: float, alibi: torch.Tensor | None, causal: bool
    ) -> torch.Tensor:
        start, end = self.query_start[i], self.query_start[i + 1]
        query, keys, values = self.query[start:end].double(), self.keys[i], self.values[i]
        if self.shape.rope_size:
            keys, values = torch.cat([keys, values], -1), keys
        group = self.shape.heads // self.shape.key_heads
        keys, values = (x.double().repeat_interleave(group, 1) for x in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", query, keys) * self.scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        length = self.lengths[i]
        position = torch.arange(length - self.queries[i], length)[:, None]
        key = torch.arange(length)[None]
        if alibi is not None:
            scores = scores + alibi.double()[:, None, None] * (key - position)
        seen = key <= position if causal else torch.ones_like(key <= position)
        if window:
            seen = seen & (key > position - window)
        weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values)


def unwritten_cache(shape: Shape, blocks: int, dtype: torch.dtype) -> PagedKVCache:
    """One in which everything unwritten is NaN, or bytes that make a NaN of a scale."""
    content = content_bytes(shape.head_size, dtype, shape.rope_size) // dtype.itemsize
    size = (blocks, shape.key_heads, shape.block_size, content)
    if dtype == torch.int8:
        tensor = torch.full(size, -1, dtype=dtype)
    else:
        tensor = torch.full(size, math.nan, dtype=dtype)
    return PagedKVCache(tensor, shape.head_size, shape.rope_size)


def relative_error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """|result - expected| / |expected|, L2."""
    return float((result.double() - expected).norm() / expected.norm())


def sequences(
    shape: Shape,
    tokens: Sequence[tuple[int, int]],
    cache_dtype: torch.dtype,
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
) -> Sequences:
    """Of (query tokens, length) each."""
    queries, lengths = [q for q, _ in tokens], [n for _, n in tokens]
    return Sequences(shape, queries, lengths, dtype, cache_dtype, seed=seed)
