"""What the table says of quantised models on a CPU is what the plugin runs."""

from pathlib import Path

import pytest

from tests.ops.test_map import LLAMA, V3
from tunan.engine.cpu.registration import MODELS
from tunan.ops.cpu_plugin import FUSED_MODELS, cpu_map
from tunan.ops.map import catalogue

ROOT = Path(__file__).parents[2]
V1 = V3 | {"architectures": ["DeepseekForCausalLM"]}


def test_every_kernel_named_is_called_in_its_file() -> None:
    for run in catalogue().cpu_plugin.values():
        assert f'"{run.operator}"' in (ROOT / run.source).read_text(encoding="utf-8")


def test_the_models_with_fused_layers_are_those_registered_with_vllm() -> None:
    assert set(FUSED_MODELS) == set(MODELS)


def test_a_decoder_layer_is_one_call() -> None:
    found = {row.module: row for row in cpu_map(LLAMA, 8, "bfloat16")}
    for module in ("RMSNorm", "RMSNorm (residual)", "Linear (W8A8)", "SiluAndMul", "Attention"):
        assert (found[module].operator, found[module].fused) == ("tunan_decoder_layer", True)
    assert "the last, before the head, is vLLM's" in found["RMSNorm (residual)"].note
    assert found["ParallelLMHead"].operator == "onednn_mm"


def test_a_layer_with_a_latent_is_one_call_but_for_prompts() -> None:
    found = {row.module: row for row in cpu_map(V3, 4, "float32")}
    for module in ("FusedMoE (W4A8)", "FusedMoE (routing)", "GateLinear", "ColumnParallelLinear"):
        assert found[module].operator == "tunan_latent_layer"
    assert "prompts are PyTorch's" in found["MultiHeadLatentAttentionWrapper"].note


@pytest.mark.parametrize(
    ("config", "dtype", "attention"),
    [
        (LLAMA, "float16", "cpu_attention_with_kv_cache"),
        (LLAMA | {"mlp_bias": True}, "bfloat16", "tunan_attention"),
        (V1, "bfloat16", "tunan_attention"),
    ],
)
def test_layers_that_are_not_fused_have_kernels_of_their_own(
    config: dict[str, object], dtype: str, attention: str
) -> None:
    found = {row.module: row.operator for row in cpu_map(config, 8, dtype)}
    assert found["Linear (W8A8)"] == "tunan_linear"
    assert found["Attention"] == attention
    assert found["RMSNorm (residual)"] == "vllm.ir.ops.fused_add_rms_norm"
    assert found.get("FusedMoE (W8A8)") in (None, "tunan_experts")
