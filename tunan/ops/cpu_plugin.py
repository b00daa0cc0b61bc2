"""What runs a quantised model on a CPU with Tunan's plugin in vLLM, as it is by default.

`tunan.engine.cpu.coverage` decides of a loaded model; here it is said of a configuration. What an
engine is started with can change it (docs/en/cpu.md, limits), and is not known here.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tunan.checkpoint.architectures import architecture_of
from tunan.ops.map import MappedModule, PluginRun, catalogue, operator_map

FUSED_MODELS = (
    "LlamaForCausalLM",
    "Qwen2ForCausalLM",
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
)
FUSED_DTYPES = ("bfloat16", "float32")
_AFTER_NORM = "RMSNorm (residual)"
_LAST_NORM = "the last, before the head, is vLLM's vllm.ir.ops.fused_add_rms_norm"
_LATENT = "MultiHeadLatentAttentionWrapper"
_PROMPTS = "prompts are PyTorch's scaled_dot_product_attention, all is vLLM's with AMX_MLA"
_OUTSIDE = ("VocabParallelEmbedding", "ParallelLMHead", "LogitsProcessor")


def cpu_map(config: Mapping[str, Any], bits: int, dtype: str) -> tuple[MappedModule, ...]:
    """`operator_map` for "cpu", of a model whose weights `tunan convert` holds in `bits` bits, 8
    or 4, and the rest in `dtype` ("bfloat16", ...). Raises what `operator_map` raises."""
    fused = _is_fused(config, dtype)
    rows = (_run(row, config, dtype, fused) for row in operator_map(config, "cpu", eight_bits=True))
    return tuple(replace(row, module=row.module.replace("W8A8", f"W{bits}A8")) for row in rows)


def _is_fused(config: Mapping[str, Any], dtype: str) -> bool:
    architecture = architecture_of(config)
    biased = "attention_bias" if architecture.attention == "mla" else "mlp_bias"
    return (
        architecture.name in FUSED_MODELS
        and dtype in FUSED_DTYPES
        and not config.get(biased, False)
    )


def _run(row: MappedModule, config: Mapping[str, Any], dtype: str, fused: bool) -> MappedModule:
    runs = catalogue().cpu_plugin
    if fused and row.module not in _OUTSIDE:
        latent = architecture_of(config).attention == "mla"
        return _in_layer(row, runs["latent layer" if latent else "layer"])
    if row.module == "Linear (W8A8)":
        return _by(row, runs["linear"])
    if row.module == "FusedMoE (W8A8)":
        return _by(row, runs["experts"])
    if row.module == "Attention" and dtype in FUSED_DTYPES:
        return _by(row, runs["attention"])
    return row


def _in_layer(row: MappedModule, run: PluginRun) -> MappedModule:
    exception = {_AFTER_NORM: _LAST_NORM, _LATENT: _PROMPTS}.get(row.module)
    found = _by(row, run)
    return found if exception is None else replace(found, note=f"{run.note}; {exception}")


def _by(row: MappedModule, run: PluginRun) -> MappedModule:
    return replace(row, operator=run.operator, fused=True, note=run.note, source=run.source)
