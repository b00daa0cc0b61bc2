"""What a configuration, before any model is built, says against fused decoder layers."""

from collections.abc import Iterator
from typing import Any

import torch

from tunan.engine.cpu.registration import MODELS


def refusals(config: Any) -> Iterator[str]:
    """Why the decoder layers of a model with this configuration of vLLM's are not fused."""
    if not set(config.model_config.architectures) & set(MODELS):
        yield f"{' or '.join(config.model_config.architectures)} has none"
    if config.model_config.quantization is None:
        yield "the model is not quantised"
    if config.model_config.dtype not in (torch.bfloat16, torch.float32):
        yield f"activations are {config.model_config.dtype}"
    if config.parallel_config.pipeline_parallel_size > 1:
        yield "pipeline parallelism is in use"
    if config.lora_config is not None:
        yield "LoRA is in use"
    if config.speculative_config is not None:
        yield "speculative decoding is in use"
    if config.kv_transfer_config is not None:
        yield "a KV connector is in use"
