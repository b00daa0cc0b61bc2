"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) in its absorbed form.

The cache holds one row a token: the normed latent (kv_lora_rank, 512) and the rotated shared key
(64). Queries come absorbed, q_nope W_UK beside q_pe, so that a row is the key of every head and its
latent the value. Decode and chunked prefill of any mix of sequences, as `paged_attention`.
"""

import torch

from tunan.errors import UsageError
from tunan.kernels.attention import paged_attention
from tunan.kernels.kv_cache import PagedKVCache
from tunan.kernels.rope import write_cache


def mla_attention(
    query: torch.Tensor,
    cache: PagedKVCache,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    *,
    scale: float,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of query [tokens, heads, latent + rope] to a latent cache: [tokens, heads, latent].

    The rest is as in `paged_attention`. Raises UsageError.
    """
    _check_latent(cache)
    return paged_attention(
        query, cache, query_start, seq_lens, block_table, scale=scale, out=out, causal=True
    )


def write_latent(
    latent: torch.Tensor, rope: torch.Tensor, cache: PagedKVCache, slots: torch.Tensor
) -> None:
    """Writes latent [tokens, kv_lora_rank] and rope [tokens, 64], rotated already, to the slots.

    slots int64 [tokens]; a negative one is padding. In int8 the latent and the rotary part have a
    scale each. Raises UsageError.
    """
    _check_latent(cache)
    write_cache(latent.unsqueeze(1), rope.unsqueeze(1), cache, slots)


def _check_latent(cache: PagedKVCache) -> None:
    if not cache.rope_size:
        raise UsageError("this is a cache of keys and values, not of latents: give its rope_size")
