"""The operator catalogue and the map made from it."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tunan.errors import CheckFailedError, UsageError
from tunan.ops.map import catalogue, operator_map

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "num_hidden_layers": 5,
}
V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "first_k_dense_replace": 2,
    "hidden_act": "silu",
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_hidden_layers": 5,
    "q_lora_rank": 8,
    "rope_scaling": {"type": "yarn"},
}
TARGETS = tuple(catalogue().targets)
ROOT = Path(__file__).parents[2]


def operators(config: dict[str, Any], target: str) -> dict[str, str | None]:
    return {mapped.module: mapped.operator for mapped in operator_map(config, target)}


@pytest.mark.parametrize(("module", "target"), list(product(catalogue().modules, TARGETS)))
def test_every_module_has_exactly_one_entry_for_every_target(module: str, target: str) -> None:
    runs = [run for run in catalogue().modules[module] if target in run.targets]
    assert len(runs) == 1
    source = runs[0].source
    if source.startswith("tunan/"):
        assert str(runs[0].operator) in (ROOT / source).read_text(encoding="utf-8")
    else:
        assert source.startswith(("vllm/", "vllm_ascend/"))
    assert runs[0].note or runs[0].fused, "what has no fused operator says what runs instead"


def test_no_entry_names_an_unknown_target() -> None:
    named = {t for runs in catalogue().modules.values() for run in runs for t in run.targets}
    assert named == set(TARGETS)


@pytest.mark.parametrize("target", ["ascend910b", "ascend910c"])
def test_llama_on_ascend(target: str) -> None:
    found = operators(LLAMA, target)
    assert found["RMSNorm"] == "npu_rms_norm"
    assert found["RMSNorm (residual)"] == "npu_add_rms_norm"
    assert found["SiluAndMul"] == "npu_swiglu"
    assert found["Attention"] == "npu_fused_infer_attention_score"


def test_v3_on_ascend() -> None:
    found = operators(V3, "ascend910b")
    assert found["FusedMoE"] == "npu_grouped_matmul"
    assert found["DeepseekScalingRotaryEmbedding"] == "npu_interleave_rope"
    assert "Attention" not in found


def test_gelu_maps_to_the_fast_one() -> None:
    assert operators(LLAMA | {"hidden_act": "gelu"}, "ascend910b")["QuickGELU"] == "npu_fast_gelu"


def test_modules_are_counted() -> None:
    counts = {mapped.module: mapped.count for mapped in operator_map(V3, "cpu")}
    assert counts["RMSNorm (residual)"] == 10
    assert counts["RMSNorm"] == 1 + 2 * 5
    assert counts["FusedMoE"] == 3
    assert counts["SiluAndMul"] == 2 + 3


def test_eight_bit_layers_are_counted_apart_from_those_left_as_they_are() -> None:
    counts = {m.module: m.count for m in operator_map(V3, "ascend910b", eight_bits=True)}
    assert counts["Linear (W8A8)"] == 2 * 5 + 2 * 5  # q_b and o, MLPs and shared experts
    assert counts["FusedMoE (W8A8)"] == 3
    assert counts["ColumnParallelLinear"] == 5  # kv_b_proj
    assert counts["MergedColumnParallelLinear"] == 5  # q_a_proj and kv_a_proj_with_mqa
    assert "RowParallelLinear" not in counts
    assert operators(LLAMA, "cpu")["QKVParallelLinear"] == "onednn_mm"


def test_what_does_not_run_on_a_target_is_said() -> None:
    mapped = {m.module: m for m in operator_map(V3, "ascend310p")}
    assert not mapped["MultiHeadLatentAttentionWrapper"].runs
    assert all(m.runs for m in operator_map(V3, "ascend910b"))


def test_an_unknown_target_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="'npu'; known are cpu, ascend910b, ascend910c"):
        operator_map(LLAMA, "npu")


def test_yarn_is_also_found_where_transformers_5_writes_it() -> None:
    config = {k: v for k, v in V3.items() if k != "rope_scaling"}
    config["rope_parameters"] = {"rope_type": "yarn", "rope_theta": 10000.0}
    assert "DeepseekScalingRotaryEmbedding" in operators(config, "cpu")


def test_a_rope_scaling_that_is_no_object_is_refused() -> None:
    with pytest.raises(CheckFailedError, match="rope scaling is 'yarn'"):
        operator_map(V3 | {"rope_scaling": "yarn"}, "cpu")


def test_a_chip_has_the_operators_of_its_family() -> None:
    config = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}
    assert operator_map(config, "ascend910b3") == operator_map(config, "ascend910b")
