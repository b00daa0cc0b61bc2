"""Attention over a paged cache: decode and chunked prefill of any mix of sequences in one call.

A query's result does not depend on the other sequences, on how its prompt was cut into chunks, or
on the number of threads, bit for bit: keys are taken in tiles of 64 and parts of 512 counted from
the sequence's first token, and the parts are merged in order (the online softmax of Milakov and
Gimelshein, arXiv 1805.02867; splitting over the keys as in Flash-Decoding).
"""

import ctypes
import functools
from typing import Any

import torch

from tunan.errors import UsageError
from tunan.kernels import library
from tunan.kernels.kv_cache import TYPES, PagedKVCache


class _Call(ctypes.Structure):
    """native/attention/attention.h: AttentionCall."""

    _fields_ = [
        ("query", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("query_token_stride", ctypes.c_int64),
        ("out_token_stride", ctypes.c_int64),
        ("query_start", ctypes.c_void_p),
        ("seq_lens", ctypes.c_void_p),
        ("block_table", ctypes.c_void_p),
        ("table_stride", ctypes.c_int64),
        ("alibi", ctypes.c_void_p),
        ("table_width", ctypes.c_int32),
        ("sequences", ctypes.c_int32),
        ("tokens", ctypes.c_int32),
        ("heads", ctypes.c_int32),
        ("query_type", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("window", ctypes.c_int32),
        ("causal", ctypes.c_int32),
    ]


def paged_attention(
    query: torch.Tensor,
    cache: PagedKVCache,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    *,
    scale: float,
    out: torch.Tensor | None = None,
    causal: bool = True,
    window: int = 0,
    softcap: float = 0.0,
    alibi: torch.Tensor | None = None,
) -> torch.Tensor:
    """softmax(scale query keys^T) values, for every head; keys and values are in the cache.

    query [tokens, heads, head_size] float32 or bfloat16. Sequence i has the query tokens
    query_start[i] to query_start[i + 1] (int32 [sequences + 1]), which are the last of its
    seq_lens[i] tokens (int32 [sequences]); its token t is in block block_table[i, t // block_size]
    (int32). heads is a multiple of the cache's. window: keys that a query sees, itself included, 0
    for all. softcap: scores become softcap tanh(score / softcap), 0 for none. alibi: float32
    [heads], the slope times (key position - query position) is added to a score.

    Returns `out`, or a new tensor in the query's shape and type; of a latent cache the last
    dimension is the latent's. Raises UsageError, before anything is read, for sizes, types or block
    numbers that do not fit each other.
    """
    if query.dim() != 3 or query.dtype not in (torch.float32, torch.bfloat16):
        raise UsageError(
            f"queries are [tokens, heads, head_size] float32 or bfloat16, not"
            f" {tuple(query.shape)} {query.dtype}"
        )
    tokens, heads, head_size = query.shape
    if head_size != cache.head_size:
        raise UsageError(f"queries of head size {head_size} for a cache of {cache.head_size}")
    result_shape = (tokens, heads, head_size - cache.rope_size)
    if out is None:
        out = query.new_empty(result_shape)
    if out.dtype != query.dtype or tuple(out.shape) != result_shape:
        raise UsageError(
            f"the output is {tuple(out.shape)} {out.dtype}; {result_shape} {query.dtype} is needed"
        )
    call = _Call(
        query.data_ptr(),
        out.data_ptr(),
        _token_stride("queries", query),
        _token_stride("the output", out),
        _integers("query_start", query_start, (seq_lens.numel() + 1,)),
        _integers("seq_lens", seq_lens, (seq_lens.numel(),)),
        _table(block_table, seq_lens.numel()),
        block_table.stride(0),
        _slopes(alibi, heads),
        block_table.shape[1],
        seq_lens.numel(),
        tokens,
        heads,
        TYPES[query.dtype],
        scale,
        softcap,
        window,
        causal,
    )
    if tokens:
        library.check(_attention()(ctypes.byref(call), ctypes.byref(cache.argument())))
    return out


@functools.cache
def _attention() -> Any:
    return library.function("tunan_attention", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def _token_stride(what: str, x: torch.Tensor) -> int:
    """Elements between tokens; heads have to follow one another."""
    _, heads, size = x.shape
    if x.stride(2) != 1 or (heads > 1 and x.stride(1) != size):
        raise UsageError(f"the heads of {what} do not follow one another: strides {x.stride()}")
    return max(x.stride(0), heads * size) if x.shape[0] <= 1 else x.stride(0)


def _integers(name: str, values: torch.Tensor, shape: tuple[int, ...]) -> int:
    if values.dtype != torch.int32 or tuple(values.shape) != shape or not values.is_contiguous():
        raise UsageError(f"{name} is {tuple(values.shape)} {values.dtype}; {shape} int32 is needed")
    return values.data_ptr()


def _table(table: torch.Tensor, sequences: int) -> int:
    if table.dtype != torch.int32 or table.dim() != 2 or table.shape[0] < sequences:
        raise UsageError(
            f"the block table is {tuple(table.shape)} {table.dtype}; [{sequences}, blocks] int32"
            " is needed"
        )
    if table.shape[1] > 1 and table.stride(1) != 1:
        raise UsageError(f"the rows of the block table are in pieces: strides {table.stride()}")
    return table.data_ptr()


def _slopes(alibi: torch.Tensor | None, heads: int) -> int | None:
    if alibi is None:
        return None
    if alibi.dtype != torch.float32 or alibi.shape != (heads,) or not alibi.is_contiguous():
        raise UsageError(f"ALiBi slopes are [{heads}] float32, not {tuple(alibi.shape)}")
    return alibi.data_ptr()
