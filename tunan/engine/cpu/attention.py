"""vLLM's CPU attention backend with Tunan's kernels: int8 KV cache, and bf16 or float32.

`--kv-cache-dtype int8_per_token_head` stores keys and values as int8 with a float32 scale for
each token and head: 2 * head_size + 8 bytes a token and head instead of 4 * head_size. The
inside of a block is laid out for our kernels; which blocks there are, who shares them and when
they are copied or freed stays vLLM's. What our kernels do not cover runs vLLM's.
"""

from dataclasses import replace
from typing import Any, ClassVar

import torch
from vllm.config import get_current_vllm_config, get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import AttentionMetadataBuilder, AttentionType
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadata,
    CPUAttentionMetadataBuilder,
    _get_attn_isa,
)
from vllm.v1.kv_cache_interface import KVQuantMode

from tunan.engine.cpu import configured
from tunan.engine.cpu.log import logger
from tunan.engine.cpu.process import start_threads
from tunan.engine.cpu.switch import VARIABLE, Switch
from tunan.errors import UsageError
from tunan.kernels import unavailable_reason
from tunan.kernels.attention import paged_attention
from tunan.kernels.kv_cache import PagedKVCache, content_bytes
from tunan.kernels.rope import write_cache

INT8 = "int8_per_token_head"
_TOKENS_IN_A_GROUP = 16  # of the kernels' layout: head and block sizes are multiples of it


class CpuAttentionBackend(CPUAttentionBackend):  # type: ignore[misc]
    """`CPU_ATTN` with one more type of KV cache."""

    supported_kv_cache_dtypes: ClassVar[list[Any]] = [
        *CPUAttentionBackend.supported_kv_cache_dtypes,
        INT8,
    ]

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        """Tells vLLM how many bytes a token takes in one head."""
        spec = super().customize_spec(spec)
        if spec.kv_quant_mode != KVQuantMode.INT8_PER_TOKEN_HEAD:
            return spec
        return replace(spec, state_content_bytes=content_bytes(spec.head_size, torch.int8))

    @staticmethod
    def get_impl_cls() -> type["CpuAttentionImpl"]:
        return CpuAttentionImpl

    @staticmethod
    def get_builder_cls() -> type["CpuAttentionMetadataBuilder"]:
        return CpuAttentionMetadataBuilder


class CpuAttentionMetadataBuilder(CPUAttentionMetadataBuilder):  # type: ignore[misc]
    """Leaves out what only vLLM's kernels need, where ours run."""

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any
    ) -> None:
        layers = get_layers_from_vllm_config(vllm_config, Attention, layer_names)
        implementations = [layer.impl for layer in layers.values()]
        self.ours = bool(implementations) and all(
            isinstance(one, CpuAttentionImpl) and one.stock_because is None
            for one in implementations
        )
        if self.ours:
            AttentionMetadataBuilder.__init__(self, kv_cache_spec, layer_names, vllm_config, device)
        else:
            super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> Any:
        if not self.ours:
            return super().build(common_prefix_len, common_attn_metadata, fast_build)
        common = common_attn_metadata
        return CPUAttentionMetadata(
            num_actual_tokens=common.num_actual_tokens,
            max_query_len=common.max_query_len,
            query_start_loc=common.query_start_loc,
            max_seq_len=common.max_seq_len,
            seq_lens=common.seq_lens,
            block_table=common.block_table_tensor,
            slot_mapping=common.slot_mapping,
            scheduler_metadata=None,
            causal=common.causal,
        )


class CpuAttentionImpl(CPUAttentionBackendImpl):  # type: ignore[misc]
    """One layer's attention; `stock_because` says why vLLM's kernels run, None where ours do.

    Raises UsageError for an int8 KV cache with something only vLLM's kernels can do.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        gap = self._gap()
        self.stock_because = gap or self._preference()
        if self.kv_cache_dtype == INT8 and self.stock_because:
            raise UsageError(f"--kv-cache-dtype {INT8} on a CPU: {self.stock_because}")
        if self.stock_because is None:
            start_threads()
        elif _quantised_model() and Switch.from_environment().attention:
            say = logger.warning_once if gap else logger.info_once
            say("tunan: vLLM's own attention runs: %s", self.stock_because)

    def _gap(self) -> str | None:
        if reason := unavailable_reason():
            return reason
        if not Switch.from_environment().attention:
            return f"{VARIABLE} leaves it out"
        config = get_current_vllm_config()
        if self.kv_cache_dtype not in ("auto", "bfloat16", INT8):
            return f"the KV cache is {self.kv_cache_dtype}"
        if config.model_config.dtype not in (torch.bfloat16, torch.float32):
            return f"activations are {config.model_config.dtype}"
        if self.attn_type != AttentionType.DECODER:
            return f"attention is of type {self.attn_type}"
        if self.sinks is not None:
            return "the model has attention sinks"
        if self.head_size % _TOKENS_IN_A_GROUP:
            return f"heads of {self.head_size} are no multiple of {_TOKENS_IN_A_GROUP}"
        if config.cache_config.block_size % _TOKENS_IN_A_GROUP:
            return f"blocks of {config.cache_config.block_size} tokens"
        if config.kv_transfer_config is not None:
            return "a KV connector reads vLLM's own layout"
        return None

    def _preference(self) -> str | None:
        """Unquantised models keep vLLM's kernels, and so the tokens they always had.

        With AMX, vLLM's are mostly faster than ours over a bfloat16 cache (benchmarks/kv.py). The
        fused layers need ours, and who names the parts in the switch gets what was named.
        """
        if self.kv_cache_dtype == INT8:
            return None
        if not _quantised_model():
            return "the model is not quantised"
        config = get_current_vllm_config()
        unfused = next(configured.refusals(config), None)
        if Switch.from_environment().fused and unfused and self._vllms_has_amx(config):
            return "it is faster with AMX over a bfloat16 cache"
        return None

    def _vllms_has_amx(self, config: Any) -> bool:
        dtype, block_size = config.model_config.dtype, config.cache_config.block_size
        return bool(_get_attn_isa(dtype, block_size, self.head_size) == "amx")

    def cache(self, kv_cache: torch.Tensor) -> PagedKVCache:
        """The layer's KV cache as the kernels see it."""
        return PagedKVCache(kv_cache, self.head_size)

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        if self.stock_because is not None:
            super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)
            return
        tokens = slot_mapping.shape[0]
        write_cache(key[:tokens], value[:tokens], self.cache(kv_cache), slot_mapping)

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if self.stock_because is not None or attn_metadata is None:
            stock: torch.Tensor = super().forward(
                layer,
                query,
                key,
                value,
                kv_cache,
                attn_metadata,
                output,
                output_scale,
                output_block_scale,
            )
            return stock
        tokens = attn_metadata.num_actual_tokens
        paged_attention(
            query[:tokens],
            self.cache(kv_cache),
            attn_metadata.query_start_loc,
            attn_metadata.seq_lens,
            attn_metadata.block_table,
            scale=self.scale,
            out=output[:tokens],
            causal=bool(attn_metadata.causal),
            window=self.window,
            softcap=float(self.logits_soft_cap),
            alibi=self.alibi_slopes,
        )
        return output

    @property
    def window(self) -> int:
        """Keys a query sees, itself included; 0: all (vLLM says -1)."""
        return max(int(self.sliding_window), 0)


def _quantised_model() -> bool:
    return bool(get_current_vllm_config().model_config.quantization == "compressed-tensors")
