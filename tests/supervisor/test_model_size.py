"""What a checkpoint needs, from its files."""

import json
from pathlib import Path

import pytest

from tunan.checkpoint.manifest import Block, Manifest, Origin
from tunan.errors import CheckFailedError, UsageError
from tunan.supervisor.model_size import check_blocks, measure

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


@pytest.mark.parametrize(
    ("stored", "asked", "computed"),
    [
        ("float32", "auto", "bfloat16"),
        ("float16", "auto", "float16"),
        ("bfloat16", "auto", "bfloat16"),
        ("bfloat16", "float32", "float32"),
    ],
)
def test_what_a_cpu_computes_in(tmp_path: Path, stored: str, asked: str, computed: str) -> None:
    config = {**LLAMA, "torch_dtype": stored, "kv_lora_rank": 32}
    size = measure(checkpoint(tmp_path, config), asked)
    assert (size.dtype, size.latent_attention) == (computed, True)


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


def converted(folder: Path) -> Path:
    """A manifest with a plain block of 8 bytes and one for each of two ranks, all there."""
    blocks = [
        ("model-00001-of-00001.safetensors", None),
        ("tensor-parallel-2/rank-0/model-00001-of-00001.safetensors", 0),
        ("tensor-parallel-2/rank-1/model-00001-of-00001.safetensors", 1),
    ]
    for file, _ in blocks:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(bytes(8))
    manifest = Manifest(
        model_name="m",
        architecture="LlamaForCausalLM",
        precision="bf16",
        target="cpu",
        max_batch_size=1,
        tensor_parallel_degree=2,
        pipeline_parallel_degree=1,
        operators={},
        blocks=tuple(
            Block(file=file, bytes=8, sha256="0" * 64, layers=(), rank=rank)
            for file, rank in blocks
        ),
        files=(),
        source=Origin(path="/m", sha256="0" * 64),
        tool="test",
    )
    (folder / "tunan.json").write_text(manifest.model_dump_json())
    return folder


@pytest.fixture
def blocks(tmp_path: Path) -> Path:
    return converted(tmp_path)


def test_blocks_that_are_as_listed_pass(blocks: Path) -> None:
    check_blocks(blocks, 2)


def test_a_truncated_block_is_named(blocks: Path) -> None:
    (blocks / "model-00001-of-00001.safetensors").write_bytes(bytes(5))
    with pytest.raises(CheckFailedError, match=r"00001.safetensors: has 5 bytes, .* says 8"):
        check_blocks(blocks, 1)


def test_a_missing_block_of_a_rank_is_named_where_that_many_ranks_are_asked_for(
    blocks: Path,
) -> None:
    (blocks / "tensor-parallel-2/rank-1/model-00001-of-00001.safetensors").unlink()
    check_blocks(blocks, 1)
    with pytest.raises(CheckFailedError, match=r"rank-1/.*lists this block, but: No such file"):
        check_blocks(blocks, 2)


def test_a_checkpoint_that_was_not_converted_has_nothing_to_check(tmp_path: Path) -> None:
    check_blocks(checkpoint(tmp_path, LLAMA), 1)
