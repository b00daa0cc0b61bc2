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


def test_fp8_checkpoints_are_audited_as_what_they_are_served_as(tmp_path: Path) -> None:
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
    config = _config(models.write_llama(tmp_path)) | {"hidden_act": "no such thing"}
    with pytest.raises(CheckFailedError, match="transformers cannot build LlamaForCausalLM"):
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
