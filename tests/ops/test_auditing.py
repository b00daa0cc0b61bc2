"""The audit: of modules a user gives, and of the families from their configurations."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests import models
from tunan.errors import UsageError
from tunan.ops import audit
from tunan.ops.audit_text import as_json, text
from tunan.ops.auditing import Audit, AuditOptions, audit_config
from tunan.ops.placement import Row
from tunan.ops.registrations import versions
from tunan.ops.verdict import Fate


class Bessel(nn.Module):
    """Calls an operator that torch_npu has no kernel for."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = torch.special.i0e(x)
        return scaled * 2


class Double(nn.Module):
    """A matrix product in float64, which the device's cores cannot do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x.double(), x.double().t()).float()


def _row(result: Audit, operator: str) -> Row:
    return next(row for row in result.rows if row.operator == operator)


def _config(writer: Any, tmp_path: Any, **overrides: Any) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(
        (writer(tmp_path, **overrides) / "config.json").read_text()
    )
    return content


def test_a_fallback_is_named_with_the_bytes_it_moves() -> None:
    result = audit(Bessel(), [torch.empty(1000, dtype=torch.float32)], "ascend910b")
    row = _row(result, "aten::special_i0e")
    assert row.fate is Fate.CPU
    assert row.crossing_bytes == 8000
    assert result.placement.cpu[-1] == "aten::special_i0e"
    copies, size, microseconds = result.placement.of_step("forward")
    assert (copies, size) == (2, 8000)
    assert 40 < microseconds < 41  # two copies at 20 us, 8000 bytes at 25.2 GB/s


def test_a_measured_link_changes_the_estimate() -> None:
    x = torch.empty(10**7, dtype=torch.float32, device="meta")
    slow = audit(Bessel(), [x], link_gbps=1.0).placement.of_step("forward")[2]
    fast = audit(Bessel(), [x], link_gbps=100.0).placement.of_step("forward")[2]
    assert slow - fast == pytest.approx(80_000 * 0.99)


def test_a_dtype_that_the_kernel_does_not_take_blocks() -> None:
    result = audit(Double(), {"x": torch.empty(3, 3)})
    assert [row.operator for row in result.blocking] == ["aten::mm"]
    assert "no float64" in result.blocking[0].reason


def test_bfloat16_blocks_on_a_chip_that_has_none() -> None:
    model = nn.Linear(4, 4, dtype=torch.bfloat16)
    inputs = [torch.empty(2, 4, dtype=torch.bfloat16)]
    assert audit(model, inputs, "ascend910b").blocking == ()
    assert audit(model, inputs, "ascend910b").options.dtype == "bfloat16"
    assert "no bfloat16" in audit(model, inputs, "ascend310p3").blocking[0].reason


def test_float8_blocks_on_atlas_a2_and_a3() -> Any:
    class Cast(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to(torch.float8_e4m3fn)

    for target in ("ascend910b", "ascend910c"):
        assert "no float8" in audit(Cast(), [torch.empty(4)], target).blocking[0].reason


def test_a_module_that_replace_exchanges_is_pointed_out() -> None:
    row = _row(audit(nn.Sequential(nn.RMSNorm(8)), [torch.empty(2, 8)]), "aten::rsqrt")
    assert row.replacement == "tunan.ops.replace: npu_rms_norm"


def test_a_layer_norm_is_one_kernel() -> None:
    result = audit(nn.LayerNorm(8), [torch.empty(2, 8)])
    assert [row.operator for row in result.rows] == ["aten::native_layer_norm"]
    assert result.rows[0].fate is Fate.NPU


@pytest.mark.parametrize("version", versions())
@pytest.mark.parametrize(
    "writer",
    [
        models.write_llama,
        models.write_qwen2,
        models.write_deepseek_v2_lite,
        models.write_deepseek_v3,
    ],
)
def test_every_family_runs_on_atlas_a2_without_leaving_the_device(
    writer: Any, version: str, tmp_path: Path
) -> None:
    config = _config(writer, tmp_path)
    result = audit_config(config, AuditOptions(torch_npu=version, prompt_tokens=5))
    assert result.blocking == ()
    assert result.steps == ("prefill", "decode")
    assert not [row for row in result.rows if row.fate in (Fate.CPU, Fate.COMPOSED)]
    assert result.placement.of_step("decode")[:2] == (2, 16)  # one token in, one out


def test_counts_are_of_the_whole_model(tmp_path: Path) -> None:
    config = _config(models.write_deepseek_v3, tmp_path, num_hidden_layers=9)
    result = audit_config(config, AuditOptions(prompt_tokens=5))
    attention = [
        row
        for row in result.rows
        if row.operator == "aten::scaled_dot_product_attention" and row.step == "decode"
    ]
    assert {row.layer: row.count for row in attention} == {"dense layer": 1, "expert layer": 8}
    assert {row.replacement for row in attention} == {"npu_fused_infer_attention_score"}


def test_latent_attention_blocks_where_the_map_says_it_does_not_run(tmp_path: Path) -> None:
    config = _config(models.write_deepseek_v3, tmp_path)
    options = AuditOptions(target="ascend310p", dtype="float16", prompt_tokens=5)
    assert {row.unit for row in audit_config(config, options).blocking} == {
        "MultiHeadLatentAttentionWrapper",
        "DeepseekScalingRotaryEmbedding",
    }


@pytest.mark.parametrize(
    "writer", [models.write_llama, models.write_deepseek_v2_lite, models.write_deepseek_v3]
)
def test_after_replacement_the_fused_operators_are_what_is_traced(
    writer: Any, tmp_path: Path
) -> None:
    config = _config(writer, tmp_path)
    before = audit_config(config, AuditOptions(prompt_tokens=5))
    after = audit_config(config, AuditOptions(prompt_tokens=5, replace=True))
    names = {row.operator for row in after.rows}
    assert {"npu::npu_rms_norm", "npu::npu_swiglu"} <= names
    assert names & {"npu::npu_rotary_mul", "npu::npu_interleave_rope"}
    assert sum(row.count for row in after.rows) < sum(row.count for row in before.rows)
    assert after.replaced is not None
    complex_left = [r for r in after.rows if any("complex" in dtype for dtype in r.dtypes)]
    assert not complex_left


def test_the_screen_is_short_and_the_json_complete(tmp_path: Path) -> None:
    config = _config(models.write_deepseek_v3, tmp_path)
    result = audit_config(config, AuditOptions(prompt_tokens=5))
    assert len(text(result).splitlines()) < 45
    content = json.loads(json.dumps(as_json(result)))
    assert content["passed"] is True
    assert len(content["rows"]) == len(result.rows)
    assert content["rows"][0]["shapes"]
    assert content["facts"]["sources"]["crossing_us"].startswith("assumed")


def test_what_plain_torch_would_do_is_said_of_fused_parts(tmp_path: Path) -> None:
    config = _config(models.write_deepseek_v3, tmp_path)
    result = audit_config(config, AuditOptions(prompt_tokens=5))
    assert {row.as_written for row in result.rows if row.operator == "aten::_grouped_mm"} == {
        Fate.COMPOSED
    }
    assert "without the fused kernels composed: _grouped_mm" in text(result)


def test_an_unknown_target_is_named_and_the_chips_that_are_known() -> None:
    with pytest.raises(UsageError, match=r"unknown target 'ascend999'.* ascend910b, ascend910b1,"):
        audit(nn.Identity(), [torch.empty(1)], "ascend999")


def test_what_is_no_module_or_no_list_of_inputs_is_named() -> None:
    with pytest.raises(UsageError, match="takes a torch module, not str"):
        audit("x", [])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="example_inputs is a Tensor"):
        audit(nn.Identity(), torch.empty(1))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_310p_refuses_every_floating_point_part_of_a_model_not_in_float16(
    tmp_path: Path, dtype: str
) -> None:
    config = _config(models.write_llama, tmp_path)
    options = AuditOptions(target="ascend310p", dtype=dtype, prompt_tokens=5)
    result = audit_config(config, options)
    refused = {row.unit for row in result.blocking}
    assert {"RMSNorm", "RotaryEmbedding", "Attention", "SiluAndMul", "ReplicatedLinear"} <= refused
    assert {row.reason for row in result.blocking} == {
        f"the chip runs no {dtype} models: use --dtype float16"
    }
    assert not [row for row in result.rows if row.unit == "RMSNorm" and row.fate is Fate.FUSED]


@pytest.mark.parametrize(
    ("target", "dtype"),
    [("ascend910b", "bfloat16"), ("ascend310p3", "float16"), ("ascend910a", "float16")],
)
def test_the_dtype_without_one_given_is_one_that_the_chip_has(
    tmp_path: Path, target: str, dtype: str
) -> None:
    config = _config(models.write_llama, tmp_path)
    result = audit_config(config, AuditOptions(target=target, prompt_tokens=5))
    assert result.options.dtype == dtype
    assert result.blocking == ()


def test_an_unknown_dtype_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown dtype 'float8'"):
        audit_config(_config(models.write_llama, tmp_path), AuditOptions(dtype="float8"))


def test_a_prompt_beyond_the_models_positions_is_refused(tmp_path: Path) -> None:
    config = _config(models.write_llama, tmp_path, max_position_embeddings=16)
    with pytest.raises(UsageError, match=r"--prompt-tokens 16: .* 16 positions"):
        audit_config(config, AuditOptions(prompt_tokens=16))
    assert audit_config(config, AuditOptions(prompt_tokens=15)).blocking == ()
