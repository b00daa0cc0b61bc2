"""What a checkpoint's config.json rules out before anything starts."""

import json
from pathlib import Path
from typing import Any

import pytest

from tunan.config import deployment_from
from tunan.errors import UsageError
from tunan.supervisor.feasibility import refuse_impossible

LLAMA = {"num_attention_heads": 24, "num_key_value_heads": 4, "num_hidden_layers": 6}
MLA = {"num_attention_heads": 16, "num_key_value_heads": 16, "kv_lora_rank": 512}
FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
FLOAT8 = {
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"type": "float", "num_bits": 8}}},
    }
}
INT8 = {
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"type": "int", "num_bits": 8}}},
    }
}
W4A8 = {
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "config_groups": {
            "group_0": {
                "weights": {
                    "type": "int",
                    "num_bits": 4,
                    "strategy": "group",
                    "group_size": 128,
                }
            }
        },
    },
}


def check(folder: Path, target: str, config: dict[str, Any], **parallel: object) -> None:
    (folder / "config.json").write_text(json.dumps(config))
    values = {"model": {"path": str(folder)}, "parallel": parallel}
    refuse_impossible(deployment_from(values, "test"), target)


@pytest.mark.parametrize("nested", [False, True])
def test_latent_attention_is_refused_on_the_310p_alone(tmp_path: Path, nested: bool) -> None:
    config = {"text_config": MLA} if nested else MLA
    for target in ("cpu", "ascend910b3", "ascend910c"):
        check(tmp_path, target, config)
    with pytest.raises(UsageError, match=r"no multi-head latent attention.*--target ascend910b"):
        check(tmp_path, "ascend310p", config)


@pytest.mark.parametrize("config", [FP8, FLOAT8], ids=["blocks", "compressed-tensors"])
@pytest.mark.parametrize("target", ["ascend910b", "ascend910b3", "ascend910c", "ascend310p"])
def test_fp8_weights_are_to_be_converted_for_any_ascend_chip(
    tmp_path: Path, target: str, config: dict[str, Any]
) -> None:
    check(tmp_path, "cpu", config)
    family = "ascend910b" if target == "ascend910b3" else target
    with pytest.raises(UsageError, match=f"tunan convert {tmp_path} OUT --target {family}$"):
        check(tmp_path, target, config)


def test_int8_weights_and_those_of_modelslim_pass(tmp_path: Path) -> None:
    check(tmp_path, "ascend910b", INT8)
    (tmp_path / "quant_model_description.json").write_text("{}")
    check(tmp_path, "ascend910b", FP8)


def test_what_only_vllm_ascend_reads_is_refused_on_a_cpu(tmp_path: Path) -> None:
    (tmp_path / "quant_model_description.json").write_text("{}")
    with pytest.raises(UsageError, match="is read by vllm-ascend alone; for a CPU convert"):
        check(tmp_path, "cpu", LLAMA)


@pytest.mark.parametrize("target", ["cpu", "ascend910b"])
@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        ({"tensor": 5}, "24 attention heads .* over 5 ranks; use 1, 2, 3, 4, 6, 8, 12 or 24"),
        ({"tensor": 6}, "4 key-value heads .* 6 ranks; use 1, 2, 4, 8, 12 or 24"),
        ({"pipeline": 7}, "has 6 layers, fewer than 7 stages"),
        ({"pipeline": 2, "layer_partition": [3, 4]}, "adds up to 7 layers, .* has 6"),
    ],
)
def test_a_split_that_does_not_come_out_even_is_refused(
    tmp_path: Path, target: str, parallel: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        check(tmp_path, target, LLAMA, **parallel)


@pytest.mark.parametrize("tensor", [1, 2, 4, 8, 12, 24])
def test_key_value_heads_may_be_split_or_repeated(tmp_path: Path, tensor: int) -> None:
    check(tmp_path, "cpu", LLAMA, tensor=tensor)


@pytest.mark.parametrize("target", ["cpu", "ascend910b"])
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            {"hidden_size": 3072, "intermediate_size": 8448},
            "8448 inputs of down_proj .* over 4 ranks in whole groups of 128 .*use 1 or 2, or",
        ),
        ({"head_dim": 64}, "1536 inputs of o_proj .* over 8 ranks .* use 1, 2, 4 or 12, or"),
        ({"moe_intermediate_size": 768}, "768 inputs of the experts' down_proj .* over 4 ranks"),
    ],
)
def test_a_rank_gets_whole_groups_of_inputs(
    tmp_path: Path, target: str, sizes: dict[str, Any], message: str
) -> None:
    ranks = 8 if "head_dim" in sizes else 4
    check(tmp_path, target, LLAMA | sizes, tensor=ranks)
    with pytest.raises(UsageError, match=message):
        check(tmp_path, target, LLAMA | sizes | W4A8, tensor=ranks)
    check(tmp_path, target, LLAMA | sizes | W4A8, tensor=2)


def test_the_latent_is_not_split(tmp_path: Path) -> None:
    check(tmp_path, "ascend910b", {**MLA, "num_key_value_heads": 3}, tensor=16)


@pytest.mark.parametrize("text", ["", "[]", '{"num_attention_heads": "many"}'])
def test_what_cannot_be_read_is_not_judged(tmp_path: Path, text: str) -> None:
    deployment = deployment_from(
        {"model": {"path": str(tmp_path)}, "parallel": {"tensor": 3}}, "test"
    )
    refuse_impossible(deployment, "ascend310p")
    (tmp_path / "config.json").write_text(text)
    refuse_impossible(deployment, "ascend310p")
