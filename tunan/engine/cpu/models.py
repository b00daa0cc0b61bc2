"""Llama, Qwen2 and DeepSeek as vLLM has them, with fused decoder layers where that is covered.

Weight loading, parallelism, scheduling and everything that is refused stay vLLM's own.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.distributed import tensor_model_parallel_all_reduce
from vllm.forward_context import get_forward_context
from vllm.model_executor.models import deepseek_v2, llama, qwen2

from tunan.engine import compat
from tunan.engine.cpu import coverage, head, kept_linear
from tunan.engine.cpu.compiled import refuse_compiled_experts
from tunan.engine.cpu.decoder import Batch, DecoderLayers
from tunan.engine.cpu.latent_layers import LatentBatch, LatentLayers
from tunan.engine.cpu.linear import PackingKernel
from tunan.engine.cpu.log import logger
from tunan.engine.cpu.packed_experts import mixture_of
from tunan.engine.cpu.process import hush_openmp, sidecar_of
from tunan.engine.cpu.sidecar import Sidecar
from tunan.engine.cpu.switch import Switch

# Of a step: the layers' names, vLLM's metadata by name, positions [tokens].
FindBatch = Callable[[tuple[str, ...], dict[str, Any], torch.Tensor], Any]


@dataclass(frozen=True)
class Family:
    """How the layers of some models are fused: what `coverage.py` has against a model, the layers
    themselves, and a step's batch if it is one that they take."""

    refusal: Callable[[Any, Any], str | None]
    layers: Callable[..., DecoderLayers | LatentLayers]
    batch: FindBatch


class FusedForward:
    """Put before one of vLLM's model classes, runs its decoder layers through its family's."""

    family: ClassVar[Family]
    _decoder: DecoderLayers | LatentLayers | None = None

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
        self._vllm_config = vllm_config
        kept_linear.keep(self, vllm_config.model_config.dtype)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Loads what is not packed already: what is, is neither read nor copied."""
        for module in self.modules():  # type: ignore[attr-defined]
            kernel = getattr(getattr(module, "scheme", None), "kernel", None)
            if isinstance(kernel, PackingKernel) and kernel.find(module):
                kernel.ignore_weights(module)
        loaded: set[str] = super().load_weights(weights)  # type: ignore[misc]
        return loaded

    def process_weights_after_loading(self) -> None:
        """vLLM calls it last: all layers are packed by now, or never will be."""
        reason = self.family.refusal(self, self._vllm_config)
        if reason is not None and any(map(mixture_of, self.modules())):  # type: ignore[attr-defined]
            refuse_compiled_experts(self._vllm_config, f"decoder layers are vLLM's own: {reason}")
        if reason is None:
            add_up = tensor_model_parallel_all_reduce if compat.tensor_parallel()[0] > 1 else None
            self._decoder = self.family.layers(self, self._vllm_config.model_config.dtype, add_up)
            hush_openmp()
        how = "are fused" if reason is None else f"are vLLM's own: {reason}"
        sidecar = sidecar_of(self._vllm_config)
        if reason is None and Switch.from_environment().head:
            how += f"; {self._quantise_head(sidecar)}"
        logger.info("tunan: decoder layers %s; %s", how, sidecar.report())

    def _quantise_head(self, sidecar: Sidecar) -> str:
        reason = head.refusal(self.lm_head)  # type: ignore[attr-defined]
        if reason is not None:
            return f"the head stays as it is: {reason}"
        head.quantise(self.lm_head, sidecar)  # type: ignore[attr-defined]
        return "the head was made int8"

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> Any:
        metadata = get_forward_context().attn_metadata
        batch = self._batch(metadata, positions)
        dry = self._decoder is not None and metadata is None
        if batch is None and not dry:
            return super().forward(  # type: ignore[misc]
                input_ids, positions, intermediate_tensors, inputs_embeds
            )
        inner: Any = self.model  # type: ignore[attr-defined]
        hidden = inner.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
        if self._decoder is None or batch is None:
            # vLLM's dry run, which has no requests: it would compile layers that never run.
            return inner.norm(hidden)
        normed, _ = inner.norm(*self._decoder(hidden, batch))
        return normed

    def _batch(self, metadata: Any, positions: torch.Tensor) -> Any:
        if self._decoder is None or not isinstance(metadata, dict) or positions.dim() != 1:
            return None
        return self.family.batch(self._decoder.names, metadata, positions)


def _batch_of_tokens(
    names: tuple[str, ...], metadata: dict[str, Any], positions: torch.Tensor
) -> Batch | None:
    found = metadata.get(names[0])
    if found is None or any(metadata.get(name) is not found for name in names):
        return None
    slots = found.slot_mapping
    if found.causal is not True or slots.shape[0] != positions.shape[0]:
        return None
    return Batch(positions, slots, found.query_start_loc, found.seq_lens, found.block_table)


def _batch_of_latents(
    names: tuple[str, ...], metadata: dict[str, Any], positions: torch.Tensor
) -> LatentBatch | None:
    found = metadata.get(names[0])
    by_name = get_forward_context().slot_mapping
    if found is None or not isinstance(by_name, dict):
        return None
    slots = by_name.get(names[0])
    if any(metadata.get(name) is not found or by_name.get(name) is not slots for name in names):
        return None
    tokens = positions.shape[0]
    if found.causal is not True or found.num_actual_tokens != tokens:
        return None
    if slots is None or slots.shape[0] < tokens:
        return None
    return LatentBatch(positions, found, slots)


PLAIN = Family(coverage.refusal, DecoderLayers, _batch_of_tokens)
LATENT = Family(coverage.latent_refusal, LatentLayers, _batch_of_latents)


class LlamaForCausalLM(FusedForward, llama.LlamaForCausalLM):  # type: ignore[misc]
    """vLLM's, with fused decoder layers."""

    family = PLAIN


class Qwen2ForCausalLM(FusedForward, qwen2.Qwen2ForCausalLM):  # type: ignore[misc]
    """vLLM's, with fused decoder layers."""

    family = PLAIN


class DeepseekV2ForCausalLM(FusedForward, deepseek_v2.DeepseekV2ForCausalLM):  # type: ignore[misc]
    """vLLM's, with fused decoder layers."""

    family = LATENT


class DeepseekV3ForCausalLM(FusedForward, deepseek_v2.DeepseekV3ForCausalLM):  # type: ignore[misc]
    """vLLM's, with fused decoder layers."""

    family = LATENT
