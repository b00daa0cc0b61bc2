"""Rotary position embedding, and the write of keys and values into the paged cache."""

import ctypes
import functools
from typing import Any

import torch

from tunan.errors import UsageError
from tunan.kernels import library
from tunan.kernels.kv_cache import CacheArgument, PagedKVCache

_FLOAT_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class _Rotation(ctypes.Structure):
    """native/rope/rope.h: Rotation."""

    _fields_ = [
        ("query", ctypes.c_void_p),
        ("key", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("cos_sin", ctypes.c_void_p),
        ("query_token_stride", ctypes.c_int64),
        ("query_head_stride", ctypes.c_int64),
        ("key_token_stride", ctypes.c_int64),
        ("key_head_stride", ctypes.c_int64),
        ("max_position", ctypes.c_int64),
        ("query_heads", ctypes.c_int32),
        ("key_heads", ctypes.c_int32),
        ("head_size", ctypes.c_int32),
        ("rotary_size", ctypes.c_int32),
        ("type", ctypes.c_int32),
        ("cos_sin_type", ctypes.c_int32),
        ("neox", ctypes.c_int32),
        ("in_steps", ctypes.c_int32),
    ]


class _Write(ctypes.Structure):
    """native/rope/rope.h: CacheWrite."""

    _fields_ = [
        ("key", ctypes.c_void_p),
        ("value", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("key_token_stride", ctypes.c_int64),
        ("value_token_stride", ctypes.c_int64),
        ("type", ctypes.c_int32),
    ]


def rotate(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor | None,
    cos_sin: torch.Tensor,
    *,
    neox: bool = True,
    in_steps: bool = False,
) -> None:
    """Rotates, in place, the first `rotary` elements of every head by the angles of its position.

    query [tokens, heads, head_size], key the same with its own heads, or None: float32, bfloat16 or
    float16. positions int64 [tokens]. cos_sin [max_position, rotary]: the cosines, then the sines.
    neox: element i is paired with i + rotary / 2, otherwise neighbours are pairs. Computed in
    float32 and rounded once; in_steps: both products are rounded before they are added, as by
    operators one after the other. Raises UsageError, before anything is written.
    """
    rotation = _rotation(positions, query, key, cos_sin, neox, in_steps=in_steps)
    _run(rotation, None, None, query.shape[0])


def write_cache(
    key: torch.Tensor, value: torch.Tensor, cache: PagedKVCache, slots: torch.Tensor
) -> None:
    """Writes key and value [tokens, heads, head_size] float32 or bfloat16 to slots of the cache.

    slots int64 [tokens]: block * block_size + offset; a negative one is padding. Raises UsageError,
    before anything is written.
    """
    _run(None, _write(key, value, cache, slots), cache.argument(), key.shape[0])


def rotate_and_write(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cos_sin: torch.Tensor,
    cache: PagedKVCache,
    slots: torch.Tensor,
    *,
    neox: bool = True,
) -> None:
    """`rotate` and `write_cache` in one pass over the tokens. Raises UsageError."""
    rotation = _rotation(positions, query, key, cos_sin, neox)
    _run(rotation, _write(key, value, cache, slots), cache.argument(), query.shape[0])


def _run(
    rotation: _Rotation | None, write: _Write | None, cache: CacheArgument | None, tokens: int
) -> None:
    arguments = (ctypes.byref(part) if part is not None else None for part in (rotation, write))
    library.check(_function()(*arguments, ctypes.byref(cache) if cache else None, tokens))


@functools.cache
def _function() -> Any:
    pointer = ctypes.c_void_p
    return library.function(
        "tunan_rotate_and_write", ctypes.c_int, pointer, pointer, pointer, ctypes.c_int64
    )


def _rotation(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor | None,
    cos_sin: torch.Tensor,
    neox: bool,
    *,
    in_steps: bool = False,
) -> _Rotation:
    tokens, heads, head_size = _heads("queries", query, query.shape[0], query.dtype)
    if cos_sin.dim() != 2 or cos_sin.dtype not in _FLOAT_TYPES or not cos_sin.is_contiguous():
        raise UsageError(f"cos_sin is {tuple(cos_sin.shape)} {cos_sin.dtype}; [positions, rotary]")
    key_heads = 0
    if key is not None:
        _, key_heads, key_size = _heads("keys", key, tokens, query.dtype)
        head_size = min(head_size, key_size)
    return _Rotation(
        query.data_ptr(),
        None if key is None else key.data_ptr(),
        _indices("positions", positions, tokens),
        cos_sin.data_ptr(),
        query.stride(0),
        query.stride(1),
        0 if key is None else key.stride(0),
        0 if key is None else key.stride(1),
        cos_sin.shape[0],
        heads,
        key_heads,
        head_size,
        cos_sin.shape[1],
        _FLOAT_TYPES[query.dtype],
        _FLOAT_TYPES[cos_sin.dtype],
        neox,
        in_steps,
    )


def _write(
    key: torch.Tensor, value: torch.Tensor, cache: PagedKVCache, slots: torch.Tensor
) -> _Write:
    heads = cache.tensor.shape[1]
    sizes = (cache.head_size, cache.head_size)
    if cache.rope_size:
        sizes = (cache.head_size - cache.rope_size, cache.rope_size)
    for what, x, size in zip(("keys", "values"), (key, value), sizes, strict=True):
        if key.dtype == torch.float16:
            raise UsageError(f"{what} for the KV cache are float32 or bfloat16, not float16")
        if _heads(what, x, key.shape[0], key.dtype)[1:] != (heads, size):
            raise UsageError(
                f"{what} are {tuple(x.shape)}; the cache takes [tokens, {heads}, {size}]"
            )
        if heads > 1 and x.stride(1) != size:
            raise UsageError(f"the heads of {what} do not follow one another: {x.stride()}")
    return _Write(
        key.data_ptr(),
        value.data_ptr(),
        _indices("slots", slots, key.shape[0]),
        key.stride(0),
        value.stride(0),
        _FLOAT_TYPES[key.dtype],
    )


def _heads(what: str, x: torch.Tensor, tokens: int, dtype: torch.dtype) -> tuple[int, int, int]:
    if x.dim() != 3 or x.shape[0] != tokens or x.dtype != dtype or dtype not in _FLOAT_TYPES:
        raise UsageError(
            f"{what} are {tuple(x.shape)} {x.dtype}; [{tokens}, heads, head_size] of float32,"
            " bfloat16 or float16, all of one type, are needed"
        )
    if x.stride(2) != 1:
        raise UsageError(f"the elements of {what} are in pieces: strides {x.stride()}")
    return x.shape[0], x.shape[1], x.shape[2]


def _indices(name: str, values: torch.Tensor, tokens: int) -> int:
    if values.dtype != torch.int64 or values.shape != (tokens,) or not values.is_contiguous():
        raise UsageError(f"{name} are {tuple(values.shape)} {values.dtype}; [{tokens}] int64")
    return values.data_ptr()
