"""What the operator map says of ascend910b, against the trace of what ran on a device."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.ascend.conftest import PROMPTS
from tests.ascend.emulated import PROGRAMS, Outcome, generate, run_emulated
from tunan.cli.main import main
from tunan.ops.map import catalogue, operator_map

pytestmark = pytest.mark.ascend

TARGET = "ascend910b"
# No model of the families here has these: vLLM's modules themselves are run.
ALONE = {"QuickGELU", "LayerNorm"}
# Operators of torch_npu, by what CANN is called for.
KERNELS = {
    "npu::npu_rms_norm": "aclnnRmsNorm",
    "npu::npu_swiglu": "aclnnSwiGlu",
    "npu::npu_rotary_mul": "aclnnRotaryPositionEmbedding",
    "npu::npu_gelu": "aclnnGeluV2",
    "aten::native_layer_norm": "aclnnLayerNorm",
}
# What a module is composed of where no operator is fused for it.
COMPOSED = {
    "npu::npu_rms_norm": {"aclnnRsqrt", "aclnnMean"},
    "npu::npu_swiglu": {"aclnnSilu"},
    "npu::npu_rotary_mul": {"aclnnNeg"},
    "npu::npu_gelu": {"aclnnTanh", "aclnnErf"},
    "aten::native_layer_norm": {"aclnnRsqrt", "aclnnMean"},
}


def kernels(modules: set[str]) -> set[str]:
    """What the map says CANN is called for."""
    return {kernel for module in modules for kernel in catalogue().run(module, TARGET).kernels}


def mapped(model: Path, *, eight_bits: bool = False) -> set[str]:
    """The module classes that the map gives a model."""
    config = json.loads((model / "config.json").read_text())
    return {one.module for one in operator_map(config, TARGET, eight_bits=eight_bits)}


def served(model: Path) -> Outcome:
    greedy: dict[str, Any] = {"temperature": 0, "max_tokens": 3, "ignore_eos": True}
    outcome = generate(model, [{"prompt": PROMPTS[0], **greedy}], engine={"dtype": "bfloat16"})
    assert outcome.result
    return outcome


def check_named(modules: set[str], ran: set[str]) -> None:
    """All that the map names for the modules ran, and nothing that it names for others only."""
    wanted = kernels(modules)
    others = kernels(set(catalogue().modules)) - wanted
    assert wanted <= ran
    assert not others & ran


def check(model: Path, ran: set[str]) -> None:
    check_named(mapped(model), ran)
    # What the map says runs elsewhere or instead under conditions that do not hold here.
    assert not {"atb::PagedAttention", "aclnnRotaryPositionEmbedding", "aclnnSilu"} & ran


def test_a_dense_model_runs_what_the_map_says(llama: Path) -> None:
    check(llama, served(llama).operators())


@pytest.mark.long
def test_qwen2_runs_what_the_map_says(qwen2: Path) -> None:
    check(qwen2, served(qwen2).operators())


@pytest.mark.long
def test_a_mixture_of_experts_runs_what_the_map_says(deepseek_v3: Path) -> None:
    outcome = served(deepseek_v3)
    check(deepseek_v3, outcome.operators())
    # The router alone is widened to float32.
    experts = json.loads((deepseek_v3 / "config.json").read_text())["n_routed_experts"]
    wide = [x for x in outcome.trace if x.startswith("aclnnMatmul ") and "other=DT_FLOAT[" in x]
    assert wide
    assert all(line.endswith(f",{experts}]") for line in wide)


@pytest.mark.long
def test_deepseek_v2_runs_what_the_map_says(deepseek_v2: Path) -> None:
    check(deepseek_v2, served(deepseek_v2).operators())


@pytest.mark.long
@pytest.mark.parametrize("family", ["llama", "deepseek_v2"])
def test_eight_bit_layers_run_what_the_map_says(
    family: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source, model = request.getfixturevalue(family), tmp_path / "w8a8"
    assert main(["convert", str(source), str(model), "--quantize", "w8a8", "--no-report"]) == 0
    check_named(mapped(source, eight_bits=True), served(model).operators())


def test_quick_gelu_and_layer_norm_run_what_the_map_says(tmp_path: Path) -> None:
    outcome = run_emulated([str(PROGRAMS / "modules.py")], tmp_path)
    assert outcome.status == 0, outcome.errors[-2000:]
    assert kernels(ALONE) <= outcome.operators()
    assert not {"aclnnSigmoid", "aclnnRsqrt", "aclnnMean"} & outcome.operators()


@pytest.mark.parametrize("family", ["llama", "qwen2", "deepseek_v2", "deepseek_v3", "gpt2"])
def test_a_replaced_model_runs_what_replace_says(
    family: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model = gpt2(tmp_path) if family == "gpt2" else request.getfixturevalue(family)
    outcome = run_emulated([str(PROGRAMS / "replaced.py"), str(model)], tmp_path)
    fused, ran = set(outcome.result["operators"]) & set(KERNELS), outcome.operators()
    assert len(fused) >= 2
    assert {KERNELS[operator] for operator in fused} <= ran
    composed = ran & {kernel for operator in fused for kernel in COMPOSED[operator]}
    experts_kept = any(reason.startswith("routed experts") for reason in outcome.result["kept"])
    assert composed == ({"aclnnSilu"} if experts_kept else set())


def gpt2(directory: Path) -> Path:
    """The configuration of a model with LayerNorm and GELU."""
    config = {"model_type": "gpt2", "n_embd": 64, "n_head": 2, "n_layer": 2, "vocab_size": 64}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_every_module_is_traced_or_says_why_not() -> None:
    traced = {m for m in catalogue().modules if catalogue().run(m, TARGET).kernels}
    reasons = {m for m in catalogue().modules if catalogue().run(m, TARGET).untraced}
    assert traced | reasons == set(catalogue().modules)
    assert not traced & reasons
