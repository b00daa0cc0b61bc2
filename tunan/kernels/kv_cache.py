"""The paged KV cache as the kernels lay it out inside (native/attention/cache_layout.h).

From outside it is vLLM's tensor, [blocks, heads, block_size, content]: the region of a block and
head holds keys, values and, in int8, their scales, in an order that only the kernels know. Blocks
can be copied, swapped and shared whole. A latent (MLA) cache has one head, and rows of the latent
followed by the rotary part: [blocks, block_size, content] or with a head dimension of 1.
"""

import ctypes
from dataclasses import dataclass
from typing import Self

import torch

from tunan.errors import UsageError
from tunan.kernels import library

# native/attention/cache_layout.h
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
# Bytes of the two float32 scales that a token has in each head: of its key and its value, or of its
# latent and rotary part.
SCALE_BYTES = 8


class CacheArgument(ctypes.Structure):
    """native/attention/attention.h: PagedCache."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("block_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
        ("blocks", ctypes.c_int32),
        ("block_size", ctypes.c_int32),
        ("heads", ctypes.c_int32),
        ("head_size", ctypes.c_int32),
        ("rope_size", ctypes.c_int32),
        ("type", ctypes.c_int32),
    ]


def content_bytes(head_size: int, dtype: torch.dtype, rope_size: int = 0) -> int:
    """Bytes of one token in one head: key and value, or, with a rope_size, one latent row.

    For int8 this is vLLM's `state_content_bytes` of `int8_per_token_head`.
    """
    elements = head_size if rope_size else 2 * head_size
    return elements * dtype.itemsize + (SCALE_BYTES if dtype == torch.int8 else 0)


@dataclass(frozen=True)
class PagedKVCache:
    """A view of one layer's cache: `tensor` [blocks, heads, block_size, content], float32, bfloat16
    or int8.

    block_size: tokens, a multiple of 16. head_size: a multiple of 16; of a latent cache (rope_size
    not 0, one head) the latent and rotary part together. Raises UsageError for sizes that no kernel
    takes or that are not the tensor's.
    """

    tensor: torch.Tensor
    head_size: int
    rope_size: int = 0

    def __post_init__(self) -> None:
        if self.tensor.dim() == 3 and self.rope_size:
            object.__setattr__(self, "tensor", self.tensor.unsqueeze(1))
        if self.tensor.dim() != 4 or self.tensor.dtype not in TYPES:
            raise UsageError(
                f"a KV cache is [blocks, heads, block_size, content] float32, bfloat16 or int8,"
                f" not {tuple(self.tensor.shape)} {self.tensor.dtype}"
            )
        expected = content_bytes(self.head_size, self.tensor.dtype, self.rope_size)
        if self.tensor.shape[3] * self.tensor.dtype.itemsize != expected:
            raise UsageError(
                f"a token of head size {self.head_size} takes {expected} bytes of the KV cache, "
                f"but the tensor {tuple(self.tensor.shape)} {self.tensor.dtype} has another content"
            )
        _, _, block_size, content = self.tensor.shape
        if self.tensor.stride()[2:] != (content, 1):
            raise UsageError(f"a block of the KV cache is in pieces: {self.tensor.stride()}")
        region_bytes = library.function("tunan_cache_region_bytes", ctypes.c_int64, ctypes.c_void_p)
        if region_bytes(ctypes.byref(self.argument())) != block_size * expected:
            raise UsageError(library.last_error())

    @property
    def compressed(self) -> bool:
        """Whether it is int8."""
        return self.tensor.dtype == torch.int8

    @property
    def slots(self) -> int:
        """Tokens it holds."""
        return self.tensor.shape[0] * self.tensor.shape[2]

    def argument(self) -> CacheArgument:
        """What the kernels take; valid as long as the tensor is."""
        blocks, heads, block_size, content = self.tensor.shape
        size = self.tensor.dtype.itemsize
        block_stride, head_stride = self.tensor.stride()[:2]
        end = 0
        if blocks and heads:
            end = (blocks - 1) * block_stride + (heads - 1) * head_stride + block_size * content
        return CacheArgument(
            self.tensor.data_ptr(),
            end * size,
            block_stride * size,
            head_stride * size,
            blocks,
            block_size,
            heads,
            self.head_size,
            self.rope_size,
            TYPES[self.tensor.dtype],
        )


@dataclass(frozen=True)
class CompressedKVCache(PagedKVCache):
    """An int8 cache: every token has, in every head, a float32 scale for its key and one for its
    value, of a symmetric quantisation to -127 ... 127.

    A head of 128 takes 264 bytes a token where bfloat16 takes 512; of 64, 136 where that takes 256.
    """

    def __post_init__(self) -> None:
        if self.tensor.dtype != torch.int8:
            raise UsageError(f"a compressed KV cache is int8, not {self.tensor.dtype}")
        super().__post_init__()

    @classmethod
    def allocate(
        cls, blocks: int, heads: int, block_size: int, head_size: int, rope_size: int = 0
    ) -> Self:
        """An empty one. Raises UsageError."""
        content = content_bytes(head_size, torch.int8, rope_size)
        tensor = torch.zeros(blocks, heads, block_size, content, dtype=torch.int8)
        return cls(tensor, head_size, rope_size)
