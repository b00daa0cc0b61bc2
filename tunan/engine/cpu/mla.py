"""vLLM's CPU_MLA backend with Tunan's kernel for decoding, and an int8 cache of latents.

`--kv-cache-dtype int8_per_token_head` stores a token's latent and its rotary key as int8 with a
float32 scale each: 584 bytes instead of 1152. Prefill stays vLLM's, a prompt at a time. It computes
from the new tokens alone: for CPU_MLA vLLM allows neither chunks nor cached prefixes. What our
kernel does not cover runs vLLM's.

Where a CPU has AMX, vLLM takes its AMX_MLA unless it is told CPU_MLA; that one has no int8 cache.
"""

from dataclasses import replace
from typing import Any, ClassVar

import torch
from vllm.config import get_current_vllm_config
from vllm.v1.attention.backends.mla.amx_mla import AMXMLABackend, AMXMLAImpl
from vllm.v1.attention.backends.mla.cpu_mla import CPUMLABackend, CPUMLAImpl
from vllm.v1.kv_cache_interface import KVQuantMode

from tunan.engine.cpu.attention import INT8
from tunan.engine.cpu.log import logger
from tunan.engine.cpu.process import start_threads
from tunan.engine.cpu.prompts import one_by_one
from tunan.engine.cpu.switch import VARIABLE, Switch
from tunan.errors import UsageError
from tunan.kernels import unavailable_reason
from tunan.kernels.kv_cache import PagedKVCache, content_bytes
from tunan.kernels.mla import mla_attention, write_latent

_DTYPES = (torch.bfloat16, torch.float32)


class CpuMlaBackend(CPUMLABackend):  # type: ignore[misc]
    """`CPU_MLA` with one more type of KV cache."""

    supported_kv_cache_dtypes: ClassVar[list[Any]] = [
        *CPUMLABackend.supported_kv_cache_dtypes,
        INT8,
    ]

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        """Tells vLLM how many bytes a token's latent takes."""
        spec = super().customize_spec(spec)
        if spec.kv_quant_mode != KVQuantMode.INT8_PER_TOKEN_HEAD:
            return spec
        # Of the rotary part only that there is one matters here.
        size = content_bytes(spec.head_size, torch.int8, rope_size=1)
        return replace(spec, state_content_bytes=size)

    @staticmethod
    def get_impl_cls() -> type["CpuMlaImpl"]:
        return CpuMlaImpl


class CpuMlaImpl(CPUMLAImpl):  # type: ignore[misc]
    """One layer's attention; `stock_because` says why vLLM's kernel runs, None where ours does.

    Raises UsageError for an int8 KV cache that our kernel cannot run.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.stock_because = _gap(self.kv_cache_dtype) or _preference(self.kv_cache_dtype)
        if self.kv_cache_dtype == INT8 and self.stock_because:
            raise UsageError(f"--kv-cache-dtype {INT8} on a CPU: {self.stock_because}")
        if self.stock_because is None:
            start_threads()
        elif _quantised_model() and Switch.from_environment().attention:
            logger.warning_once("tunan: vLLM's own latent attention runs: %s", self.stock_because)

    def cache(self, kv_cache: torch.Tensor) -> PagedKVCache:
        """The layer's KV cache as the kernel sees it; vLLM takes any quantised one for fp8."""
        if self.kv_cache_dtype == INT8:
            kv_cache = kv_cache.view(torch.int8)
        return PagedKVCache(kv_cache, self.head_size, self.qk_rope_head_dim)

    def do_kv_cache_update(
        self,
        kv_c_normed: torch.Tensor,
        k_pe: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        kv_cache_dtype: str,
        k_scale: torch.Tensor,
    ) -> None:
        if self.stock_because is not None:
            super().do_kv_cache_update(
                kv_c_normed, k_pe, kv_cache, slot_mapping, kv_cache_dtype, k_scale
            )
            return
        if kv_cache.numel() == 0:
            return
        slots = slot_mapping.flatten()
        latents, keys = kv_c_normed[: len(slots)], k_pe[: len(slots)].flatten(1)
        write_latent(latents, keys, self.cache(kv_cache), slots)

    def forward_mha(
        self,
        q: torch.Tensor,
        kv_c_normed: torch.Tensor,
        k_pe: torch.Tensor,
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: Any,
        k_scale: torch.Tensor,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
    ) -> None:
        """vLLM's attention of prompts, one at a time, so that none depends on the others' size."""
        every = [(slice(None), attn_metadata)]
        for rows, one in every if self.stock_because else one_by_one(attn_metadata):
            super().forward_mha(
                q[rows],
                kv_c_normed[rows],
                k_pe[rows],
                kv_c_and_k_pe_cache,
                one,
                k_scale,
                output=output[rows],
                output_scale=output_scale,
            )

    def forward_mqa(
        self, q: Any, kv_c_and_k_pe_cache: torch.Tensor, attn_metadata: Any, layer: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attention of absorbed queries [tokens, heads, latent + rope], each the last token of its
        sequence: [tokens, heads, latent]."""
        decode = attn_metadata.decode
        query = torch.cat(q, dim=-1) if isinstance(q, tuple) else q
        sequences = decode.seq_lens.shape[0]
        if self.stock_because is not None:
            stock: tuple[torch.Tensor, torch.Tensor | None] = super().forward_mqa(
                query, kv_c_and_k_pe_cache, attn_metadata, layer
            )
            return stock
        found = mla_attention(
            query,
            self.cache(kv_c_and_k_pe_cache),
            attn_metadata.query_start_loc[: sequences + 1],
            decode.seq_lens.to(torch.int32),
            decode.block_table.to(torch.int32),
            scale=self.scale,
        )
        return found, None


class AmxMlaBackend(AMXMLABackend):  # type: ignore[misc]
    """vLLM's, but that it says what to do for an int8 KV cache, which it would take for fp8."""

    @staticmethod
    def get_impl_cls() -> type["AmxMlaImpl"]:
        return AmxMlaImpl


class AmxMlaImpl(AMXMLAImpl):  # type: ignore[misc]
    """vLLM's. Raises UsageError for an int8 KV cache."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        if self.kv_cache_dtype == INT8:
            raise UsageError(
                f"--kv-cache-dtype {INT8} with latent attention: vLLM's kernel for AMX has none;"
                " add --attention-backend CPU_MLA"
            )


def _gap(kv_cache_dtype: str) -> str | None:
    if reason := unavailable_reason():
        return reason
    if not Switch.from_environment().attention:
        return f"{VARIABLE} leaves it out"
    config = get_current_vllm_config()
    if kv_cache_dtype not in ("auto", "bfloat16", INT8):
        return f"the KV cache is {kv_cache_dtype}"
    if config.model_config.dtype not in _DTYPES:
        return f"activations are {config.model_config.dtype}"
    if config.speculative_config is not None:
        return "speculative decoding is in use"
    if config.kv_transfer_config is not None:
        return "a KV connector reads vLLM's own layout"
    return None


def _preference(kv_cache_dtype: str) -> str | None:
    """Unquantised models keep vLLM's kernel, and so the tokens they always had."""
    if kv_cache_dtype == INT8 or _quantised_model():
        return None
    return "the model is not quantised"


def _quantised_model() -> bool:
    return bool(get_current_vllm_config().model_config.quantization == "compressed-tensors")
