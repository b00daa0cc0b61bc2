"""What a checkpoint needs, from its files."""

import json
from pathlib import Path

import pytest

from tunan.errors import UsageError
from tunan.supervisor.model_size import measure

LLAMA = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 4096,
}


def checkpoint(folder: Path, config: object, weights: int = 1000) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model-00001-of-00001.safetensors").write_bytes(bytes(weights))
    return folder


def test_keys_and_values_of_every_layer_count(tmp_path: Path) -> None:
    size = measure(checkpoint(tmp_path, LLAMA))
    assert size.weights == 1000
    assert size.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2
    assert size.max_len == 4096
    assert not size.has_manifest


def test_the_type_asked_for_counts(tmp_path: Path) -> None:
    size = measure(checkpoint(tmp_path, LLAMA), "float32")
    assert size.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4


def test_mla_keeps_one_latent_a_layer(tmp_path: Path) -> None:
    config = {**LLAMA, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert measure(checkpoint(tmp_path, config)).kv_bytes_per_token == 2 * (512 + 64) * 2


def test_a_manifest_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "tunan.json").write_text("{}")
    assert measure(checkpoint(tmp_path, LLAMA)).has_manifest


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda path: None, "no such checkpoint"),
        (lambda path: path.write_text(""), "not a checkpoint directory"),
        (lambda path: path.mkdir(), "config.json"),
        (lambda path: (path.mkdir(), (path / "config.json").write_text("{")), "not valid JSON"),
        (lambda path: (path.mkdir(), (path / "config.json").write_text("[]")), "not a JSON object"),
        (lambda path: (path.mkdir(), (path / "config.json").write_text("{}")), "no weights"),
    ],
)
def test_what_is_no_checkpoint_is_said_in_one_line(
    tmp_path: Path, prepare: object, message: str
) -> None:
    path = tmp_path / "model"
    prepare(path)  # type: ignore[operator]
    with pytest.raises(UsageError, match=message):
        measure(path)
