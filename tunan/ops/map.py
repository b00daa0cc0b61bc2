"""From the model's modules to the operators that run them on a target.

The facts are in `operators.yaml`, beside this file, with the source file of each; what is
worked out here is which of them a configuration uses and how often.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from tunan.checkpoint.architectures import architecture_of, has_experts, number
from tunan.errors import CheckFailedError, UsageError
from tunan.targets import family_of

_CATALOGUE = Path(__file__).with_name("operators.yaml")
_LINEAR = (
    "QKVParallelLinear",
    "MergedColumnParallelLinear",
    "ColumnParallelLinear",
    "RowParallelLinear",
)
# Where their weights are quantised modules go by another name, one for all linear layers.
_EIGHT_BITS = {"FusedMoE": "FusedMoE (W8A8)"} | dict.fromkeys(_LINEAR, "Linear (W8A8)")


class _Fact(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Target(_Fact):
    """Hardware a model can be converted for, and the software whose sources were read."""

    stack: str
    chips: str


class Run(_Fact):
    """How one module class runs on some targets.

    `operator` is None if general PyTorch operators do the work; `fused` says that one kernel
    made for the job does; `runs` is False where the target cannot run the module at all.
    `kernels` are what CANN is called for on ascend910b, by the trace of an emulated device;
    `untraced` says why there is none.
    """

    targets: tuple[str, ...]
    operator: str | None
    fused: bool
    source: str
    note: str = ""
    runs: bool = True
    kernels: tuple[str, ...] = ()
    untraced: str = ""


class PluginRun(_Fact):
    """A kernel of Tunan's own that vLLM calls on a CPU through our plugin."""

    operator: str
    source: str
    note: str


class Catalogue(_Fact):
    """The content of operators.yaml. `cpu_plugin` has what runs parts of a quantised model on a
    CPU, by part."""

    targets: dict[str, Target]
    modules: dict[str, tuple[Run, ...]]
    cpu_plugin: dict[str, PluginRun]

    def run(self, module: str, target: str) -> Run:
        """How `module` runs on `target`; both must be in the catalogue."""
        return next(run for run in self.modules[module] if target in run.targets)


@dataclass(frozen=True)
class MappedModule:
    """One row of the table: a module class, how many the model has, and what runs it."""

    module: str
    count: int
    operator: str | None
    fused: bool
    runs: bool
    note: str
    source: str


@cache
def catalogue() -> Catalogue:
    """The facts of operators.yaml."""
    import yaml

    return Catalogue.model_validate(yaml.safe_load(_CATALOGUE.read_text(encoding="utf-8")))


def operator_map(
    config: Mapping[str, Any], target: str, *, eight_bits: bool = False
) -> tuple[MappedModule, ...]:
    """The operators that run a model on a target (or a chip of it), in order of use.

    With `eight_bits` those layers that `--quantize w8a8` quantises are counted as such. Counts are
    of the model itself, without multi-token-prediction layers. Raises UsageError for a target
    that is not known.
    """
    known, target = catalogue(), family_of(target)
    if target not in known.targets:
        raise UsageError(f"unknown target '{target}'; known are {', '.join(known.targets)}")
    counts: Counter[str] = Counter()
    for module, count in _modules(config, _EIGHT_BITS if eight_bits else {}):
        counts[module] += count
    return tuple(
        MappedModule(module, count, run.operator, run.fused, run.runs, run.note, run.source)
        for module, count in counts.items()
        for run in [known.run(module, target)]
    )


def refused_activation(config: Mapping[str, Any]) -> str | None:
    """The activation of a model's MLPs if vLLM has no such model: all these architectures are
    written for SiLU, and raise ValueError for another (`hidden_act` in vLLM's models)."""
    named = config.get("hidden_act", "silu")
    return None if named == "silu" else str(named)


def _modules(config: Mapping[str, Any], quantised: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    def named(module: str) -> str:
        return quantised.get(module, module)

    layers = number(config, "num_hidden_layers")
    expert_layers = sum(has_experts(config, layer) for layer in range(layers))
    yield "VocabParallelEmbedding", 1
    yield "RMSNorm", 1  # the very first; every later norm also adds the residual
    yield "RMSNorm (residual)", 2 * layers
    if architecture_of(config).attention == "mla":
        yield from _latent_attention(config, layers, named("ColumnParallelLinear"))
    else:
        yield named("QKVParallelLinear"), layers
        yield "RotaryEmbedding", layers
        yield "Attention", layers
    yield named("RowParallelLinear"), layers
    yield from _mlp(config, layers - expert_layers, quantised)
    if expert_layers:
        yield "GateLinear", expert_layers
        yield "FusedMoE (routing)", expert_layers
        yield named("FusedMoE"), expert_layers
        if config.get("n_shared_experts"):
            yield from _mlp(config, expert_layers, quantised)
    yield "ParallelLMHead", 1
    yield "LogitsProcessor", 1


def _latent_attention(
    config: Mapping[str, Any], layers: int, query: str
) -> Iterator[tuple[str, int]]:
    """`query` names the module of q_proj or q_b_proj: what makes the latents is never quantised."""
    if config.get("q_lora_rank") is None:
        yield query, layers  # q_proj
        yield "ColumnParallelLinear", layers  # kv_b_proj
        yield "ReplicatedLinear", layers  # kv_a_proj_with_mqa
        yield "RMSNorm", layers
    else:
        yield "MergedColumnParallelLinear", layers  # fused_qkv_a_proj
        yield query, layers  # q_b_proj
        yield "ColumnParallelLinear", layers  # kv_b_proj
        yield "RMSNorm", 2 * layers
    yield "DeepseekScalingRotaryEmbedding" if _is_yarn(config) else "RotaryEmbedding", layers
    if architecture_of(config).indexer:
        yield "ReplicatedLinear", layers  # wq_b
        yield "MergedColumnParallelLinear", layers  # wk_weights_proj
        yield "LayerNorm", layers
        yield "SparseAttnIndexer", layers
    yield "MultiHeadLatentAttentionWrapper", layers


def _is_yarn(config: Mapping[str, Any]) -> bool:
    """Whether positions are scaled by YaRN; transformers 5 renamed `rope_scaling`."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        raise CheckFailedError(f"config.json: the rope scaling is {scaling!r}, not an object")
    return scaling.get("rope_type", scaling.get("type")) in ("yarn", "deepseek_yarn")


def _mlp(
    config: Mapping[str, Any], count: int, quantised: Mapping[str, str]
) -> Iterator[tuple[str, int]]:
    if not count:
        return
    merged, row = "MergedColumnParallelLinear", "RowParallelLinear"
    yield quantised.get(merged, merged), count  # gate_up_proj
    yield "QuickGELU" if "gelu" in str(config.get("hidden_act")) else "SiluAndMul", count
    yield quantised.get(row, row), count  # down_proj
