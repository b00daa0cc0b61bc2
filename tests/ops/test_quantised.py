"""Quantised models: which layers are, what runs them, and what is not audited."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests import models
from tunan.checkpoint.quantize.compressed_tensors import quantization_config
from tunan.checkpoint.quantize.scheme import WeightScheme
from tunan.errors import CheckFailedError, UsageError
from tunan.ops.audit_text import as_json, text
from tunan.ops.auditing import Audit, AuditOptions, audit_config
from tunan.ops.meta_model import read_config
from tunan.ops.quantised import quantised, read_description
from tunan.ops.verdict import Fate

TARGETS = ("ascend910b", "ascend910c", "ascend310p", "ascend910a")


def _llama(tmp_path: Path) -> dict[str, Any]:
    return read_config(models.write_llama(tmp_path))


def _v3(tmp_path: Path, **overrides: Any) -> dict[str, Any]:
    return read_config(models.write_deepseek_v3(tmp_path, **overrides))


def _w8a8(config: dict[str, Any]) -> dict[str, Any]:
    return config | {"quantization_config": quantization_config(config, WeightScheme())}


def _audit(config: dict[str, Any], description: Any = None, **options: Any) -> Audit:
    return audit_config(config, AuditOptions(prompt_tokens=5, **options), description)


def _decode_modules(result: Audit, unit: str) -> dict[str, int]:
    """Module to the layers it stands for, of a part in the decode step."""
    return {
        module.rpartition(".")[2]: row.count // len(row.modules)
        for row in result.rows
        if row.unit == unit and row.step == "decode" and row.operator == "aten::mm"
        for module in row.modules
    }


@pytest.mark.parametrize("target", TARGETS)
def test_fp8_layers_block_on_every_target_and_the_way_out_is_said(
    tmp_path: Path, target: str
) -> None:
    result = _audit(_v3(tmp_path, fp8=True), target=target)
    fp8 = [row for row in result.blocking if "FP8" in row.reason]
    assert {row.unit for row in fp8} == {"ReplicatedLinear", "FusedMoE"}
    assert "lm_head" not in {module for row in fp8 for module in row.modules}
    shown = text(result)
    assert "FP8 weights have no kernels on Atlas A2, A3 and 310P" in shown.splitlines()[2]
    assert "cannot run from FP8 weights" in shown
    assert "tunan convert: makes bfloat16" in shown
    assert as_json(result)["passed"] is False


def test_layers_that_an_fp8_checkpoint_leaves_are_not_refused(tmp_path: Path) -> None:
    config = _v3(tmp_path, fp8=True)
    config["quantization_config"] |= {"modules_to_not_convert": ["self_attn"]}
    refused = {module for row in _audit(config).blocking for module in row.modules}
    assert refused
    assert not [module for module in refused if "self_attn" in module]


def test_eight_bit_layers_run_the_quantised_product_and_the_ignored_ones_do_not(
    tmp_path: Path,
) -> None:
    result = _audit(_w8a8(_v3(tmp_path)))
    assert result.blocking == ()
    assert set(_decode_modules(result, "Linear (W8A8)")) == {
        "q_b_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    }
    assert set(_decode_modules(result, "ReplicatedLinear")) == {
        "q_a_proj",
        "kv_a_proj_with_mqa",
        "kv_b_proj",
        "lm_head",
    }
    rows = [row for row in result.rows if row.unit == "Linear (W8A8)"]
    assert {row.fate for row in rows} == {Fate.FUSED}
    assert all("npu_quant_matmul" in row.replacement for row in rows)
    assert all("npu_dynamic_quant" in row.replacement for row in rows)
    experts = [row for row in result.rows if row.unit == "FusedMoE (W8A8)"]
    assert experts
    assert all(row.replacement.startswith("npu_grouped_matmul") for row in experts)
    assert not [row for row in result.rows if row.unit == "FusedMoE"]


def test_the_screen_says_that_layers_are_quantised_and_what_runs_them(tmp_path: Path) -> None:
    shown = text(_audit(_w8a8(_llama(tmp_path))))
    assert "quantised (compressed-tensors W8A8)" in shown.splitlines()[2]
    assert "npu_quant_matmul (npu_dynamic_quant rounds the input)" in shown


def test_on_a_chip_whose_quantised_operators_are_not_known_that_is_said(tmp_path: Path) -> None:
    blocking = _audit(_w8a8(_llama(tmp_path)), target="ascend910a").blocking
    assert {row.reason for row in blocking} == {
        "how quantised layers run on this chip is not known"
    }


def test_the_310p_runs_w8a8_from_a_description_and_not_from_compressed_tensors(
    tmp_path: Path,
) -> None:
    config = _llama(tmp_path)
    blocking = _audit(_w8a8(config), target="ascend310p").blocking
    assert {row.unit for row in blocking} == {"Linear (W8A8)"}
    assert "reads no compressed-tensors" in blocking[0].reason
    described = {f"model.layers.{layer}.mlp.up_proj.weight": "W8A8_DYNAMIC" for layer in range(3)}
    result = _audit(config, described, target="ascend310p")
    assert result.blocking == ()
    assert _decode_modules(result, "Linear (W8A8)") == {"up_proj": 3}


def test_layers_of_one_kind_that_differ_are_counted_apart(tmp_path: Path) -> None:
    config = _w8a8(_llama(tmp_path))
    config["quantization_config"]["ignore"] += ["model.layers.1.self_attn.o_proj"]
    result = _audit(config)
    assert _decode_modules(result, "Linear (W8A8)")["o_proj"] == 2
    assert _decode_modules(result, "ReplicatedLinear")["o_proj"] == 1


def test_modelslims_description_says_which_layers_are_quantised(tmp_path: Path) -> None:
    described = {
        f"model.layers.{layer}.mlp.{name}.weight": "W8A8_DYNAMIC" if layer else "FLOAT"
        for layer in range(3)
        for name in ("gate_proj", "up_proj", "down_proj")
    }
    result = _audit(_llama(tmp_path), described)
    assert _decode_modules(result, "Linear (W8A8)") == {
        "gate_proj": 2,
        "up_proj": 2,
        "down_proj": 2,
    }
    assert _decode_modules(result, "ReplicatedLinear")["down_proj"] == 1


def test_an_int8_cache_is_said_not_to_be_audited(tmp_path: Path) -> None:
    found = quantised(_llama(tmp_path), {"model_quant_type": "FLOAT", "kv_cache_type": "C8"})
    assert found is not None
    assert "int8 cache's own operators are not audited" in found.summary


def test_a_description_of_plain_weights_is_no_quantisation(tmp_path: Path) -> None:
    assert quantised(_llama(tmp_path), {"lm_head.weight": "FLOAT"}) is None
    assert quantised(_llama(tmp_path)) is None


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("weights", {"num_bits": 4}),
        ("weights", {"strategy": "group"}),
        ("input_activations", {"dynamic": False}),
        ("input_activations", None),
    ],
)
def test_other_schemes_of_compressed_tensors_are_not_audited(
    tmp_path: Path, part: str, changes: Any
) -> None:
    config = copy.deepcopy(_w8a8(_llama(tmp_path)))
    group = config["quantization_config"]["config_groups"]["group_0"]
    group[part] = None if changes is None else group[part] | changes
    with pytest.raises(UsageError, match=r"^not audited: compressed-tensors"):
        quantised(config)


def test_fp8_in_compressed_tensors_is_fp8(tmp_path: Path) -> None:
    config = copy.deepcopy(_w8a8(_llama(tmp_path)))
    config["quantization_config"]["config_groups"]["group_0"]["weights"]["type"] = "float"
    found = quantised(config)
    assert found is not None
    assert found.scheme == "fp8"


@pytest.mark.parametrize("method", ["gptq", "awq", None])
def test_an_unknown_method_is_not_audited(tmp_path: Path, method: str | None) -> None:
    config = _llama(tmp_path) | {"quantization_config": {"quant_method": method, "bits": 4}}
    with pytest.raises(UsageError, match=f"^not audited: quant_method {method!r}"):
        _audit(config)


def test_an_unknown_type_in_a_description_is_not_audited(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^not audited: .*W4A8_DYNAMIC"):
        quantised(_llama(tmp_path), {"model.layers.0.mlp.up_proj.weight": "W4A8_DYNAMIC"})


@pytest.mark.parametrize(
    "settings",
    [
        "fp8",
        {"quant_method": "compressed-tensors"},
        {"quant_method": "fp8", "ignored_layers": "lm_head"},
    ],
)
def test_settings_that_are_malformed_are_named(tmp_path: Path, settings: Any) -> None:
    with pytest.raises(CheckFailedError, match=r"config\.json"):
        quantised(_llama(tmp_path) | {"quantization_config": settings})


def test_an_expression_that_is_none_is_named(tmp_path: Path) -> None:
    config = _w8a8(_llama(tmp_path))
    config["quantization_config"]["ignore"] = ["re:("]
    with pytest.raises(CheckFailedError, match="is no expression"):
        _audit(config)


def test_replacing_modules_of_a_quantised_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--replace is for models that are not quantised"):
        _audit(_w8a8(_llama(tmp_path)), replace=True)


def test_the_description_lies_beside_the_configuration(tmp_path: Path) -> None:
    assert read_description(tmp_path) is None
    (tmp_path / "quant_model_description.json").write_text(json.dumps({"a.weight": "FLOAT"}))
    assert read_description(tmp_path) == read_description(tmp_path / "config.json")
    (tmp_path / "quant_model_description.json").write_text("[]")
    with pytest.raises(CheckFailedError, match="description is a JSON object"):
        read_description(tmp_path)
