"""Models from configurations alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import models
from tunan.errors import CheckFailedError, UsageError
from tunan.ops.meta_model import layer_kinds, meta_model, read_config


def _config(directory: Path) -> dict[str, Any]:
    return read_config(directory)


def test_one_layer_of_each_kind_is_kept_with_how_many_there_are(tmp_path: Path) -> None:
    config = _config(models.write_deepseek_v3(tmp_path, num_hidden_layers=6))
    made = meta_model(config, "bfloat16")
    assert made.layers == layer_kinds(config) == (("dense layer", 1), ("expert layer", 5))
    layers = {name.split(".")[2] for name, _ in made.model.named_parameters() if ".layers." in name}
    assert layers == {"0", "1"}
    assert all(parameter.is_meta for parameter in made.model.parameters())


def test_an_fp8_configuration_makes_a_model_of_the_dtype_asked_for(tmp_path: Path) -> None:
    config = _config(models.write_deepseek_v3(tmp_path, fp8=True))
    made = meta_model(config, "float16")
    assert {str(p.dtype) for p in made.model.parameters()} == {"torch.float16"}


def test_code_that_comes_with_a_checkpoint_is_never_run(tmp_path: Path) -> None:
    config = _config(models.write_llama(tmp_path)) | {
        "auto_map": {"AutoModelForCausalLM": "evil.Model"}
    }
    (tmp_path / "evil.py").write_text("raise SystemExit(9)")
    assert type(meta_model(config, "bfloat16").model).__module__.startswith("transformers.")


def test_a_configuration_that_transformers_refuses_is_one_line(tmp_path: Path) -> None:
    config = _config(models.write_llama(tmp_path)) | {"rope_scaling": {"rope_type": "nosuch"}}
    with pytest.raises(CheckFailedError, match="transformers cannot build LlamaForCausalLM") as e:
        meta_model(config, "bfloat16")
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "nosuch"),
        ("hidden_act", 3),
        ("num_attention_heads", 0),
        ("num_attention_heads", 14),
        ("num_key_value_heads", 3),
        ("num_hidden_layers", "3"),
        ("hidden_size", -1),
        ("intermediate_size", None),
        ("vocab_size", 0),
        ("rms_norm_eps", "1e-6"),
        ("rope_theta", 0),
    ],
)
def test_a_value_that_fits_no_model_is_named_with_its_key(
    tmp_path: Path, key: str, value: Any
) -> None:
    config = _config(models.write_llama(tmp_path)) | {key: value}
    with pytest.raises(CheckFailedError, match=f"^config.json: {key} .*{value!r}"):
        meta_model(config, "bfloat16")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_experts_per_tok", 99),
        ("n_group", 3),
        ("topk_group", 99),
        ("moe_intermediate_size", 0),
        ("kv_lora_rank", 0),
        ("qk_rope_head_dim", 63),
    ],
)
def test_a_value_that_fits_no_mixture_of_experts_is_named_with_its_key(
    tmp_path: Path, key: str, value: int
) -> None:
    config = _config(models.write_deepseek_v3(tmp_path)) | {key: value}
    with pytest.raises(CheckFailedError, match=f"^config.json: {key} .*{value!r}"):
        meta_model(config, "bfloat16")


def test_heads_that_cannot_be_rotated_are_named(tmp_path: Path) -> None:
    config = _config(models.write_llama(tmp_path)) | {"head_dim": 63}
    with pytest.raises(CheckFailedError, match="heads of 63 cannot be rotated"):
        meta_model(config, "bfloat16")


@pytest.mark.parametrize("content", ["not json", "[1]"])
def test_a_file_that_is_no_configuration_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckFailedError, match=r"config\.json"):
        read_config(tmp_path)


def test_an_unknown_architecture_is_named() -> None:
    config = json.loads('{"architectures": ["GptForCausalLM"]}')
    with pytest.raises(UsageError, match="GptForCausalLM"):
        meta_model(config, "bfloat16")
