"""tunan.json, read strictly."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tunan.checkpoint.manifest import Block, CarriedFile, Manifest, Origin, rank_directory, utf8
from tunan.errors import CheckFailedError, UsageError

SHA = "0" * 64


@pytest.fixture
def manifest() -> Manifest:
    return Manifest(
        model_name="模型",
        architecture="LlamaForCausalLM",
        precision="bf16",
        target="cpu",
        max_batch_size=32,
        tensor_parallel_degree=2,
        pipeline_parallel_degree=1,
        operators={"RMSNorm": "npu_rms_norm", "LogitsProcessor": None},
        blocks=(
            Block(file="model-00001-of-00001.safetensors", bytes=1, sha256=SHA, layers=(0, 1)),
            Block(
                file=f"{rank_directory(2, 1)}/a.safetensors", bytes=2, sha256=SHA, layers=(), rank=1
            ),
        ),
        files=(CarriedFile(file="config.json", bytes=0, sha256=SHA),),
        source=Origin(path="/models/x", sha256=SHA),
        tool="tunan 0",
    )


def test_what_is_written_is_read_back(manifest: Manifest, tmp_path: Path) -> None:
    manifest.write(tmp_path)
    assert Manifest.read(tmp_path) == manifest


def test_the_file_has_the_documented_keys(manifest: Manifest) -> None:
    content = json.loads(manifest.to_json())
    assert content["format"] == 1
    assert content["blocks"][0]["layers"] == [0, 1]
    assert set(content["source"]) == {"path", "sha256"}


def test_blocks_are_told_apart_by_rank(manifest: Manifest) -> None:
    assert [block.bytes for block in manifest.blocks_of(None)] == [1]
    assert [block.bytes for block in manifest.blocks_of(1)] == [2]
    assert not manifest.blocks_of(0)


def write_changed(manifest: Manifest, directory: Path, **changes: Any) -> Path:
    content = json.loads(manifest.to_json()) | changes
    (directory / "tunan.json").write_text(json.dumps(content))
    return directory


def test_an_unknown_key_is_named(manifest: Manifest, tmp_path: Path) -> None:
    with pytest.raises(CheckFailedError, match=r"tunan\.json: colour: Extra inputs"):
        Manifest.read(write_changed(manifest, tmp_path, colour="red"))


def test_a_wrong_value_is_named_with_its_place(manifest: Manifest, tmp_path: Path) -> None:
    blocks = [{"file": "a", "bytes": 0, "sha256": SHA, "layers": []}]
    with pytest.raises(CheckFailedError, match=r"blocks\.0\.bytes: Input should be greater than 0"):
        Manifest.read(write_changed(manifest, tmp_path, blocks=blocks))


def test_another_format_is_refused(manifest: Manifest, tmp_path: Path) -> None:
    with pytest.raises(CheckFailedError, match="format 2; this version of Tunan reads format 1"):
        Manifest.read(write_changed(manifest, tmp_path, format=2))


def test_a_directory_without_a_manifest_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no tunan\.json; give a directory written by"):
        Manifest.read(tmp_path)


def test_a_torn_manifest_is_damage(tmp_path: Path) -> None:
    (tmp_path / "tunan.json").write_text('{"format": 1, "mod')
    with pytest.raises(CheckFailedError, match="not readable as JSON"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize(
    "file",
    ["../../x", "/etc/passwd", "", ".", "a//b", "a/../b", "a\0b", "\x1b[31m", "a\\b", "\ud800"],
)
@pytest.mark.parametrize("kind", ["blocks", "files"])
def test_a_file_outside_the_checkpoint_is_refused(
    manifest: Manifest, tmp_path: Path, kind: str, file: str
) -> None:
    items = json.loads(manifest.to_json())[kind]
    items[0]["file"] = file
    write_changed(manifest, tmp_path, **{kind: items})
    with pytest.raises(CheckFailedError, match="is not a path inside the checkpoint"):
        Manifest.read(tmp_path)


def test_a_file_listed_twice_is_refused(manifest: Manifest, tmp_path: Path) -> None:
    blocks = json.loads(manifest.to_json())["blocks"]
    write_changed(manifest, tmp_path, blocks=[*blocks, blocks[0]])
    with pytest.raises(CheckFailedError, match=r"model-00001.* is listed twice"):
        Manifest.read(tmp_path)


def test_a_manifest_without_blocks_or_with_a_stray_rank_is_refused(
    manifest: Manifest, tmp_path: Path
) -> None:
    with pytest.raises(CheckFailedError, match="no blocks are listed"):
        Manifest.read(write_changed(manifest, tmp_path, blocks=[]))
    with pytest.raises(CheckFailedError, match="is of rank 1, of 1 in all"):
        Manifest.read(write_changed(manifest, tmp_path, tensor_parallel_degree=1))


def test_json_nested_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tunan.json").write_text("[" * 200_000)
    with pytest.raises(CheckFailedError, match="not readable as JSON"):
        Manifest.read(tmp_path)


def test_a_file_name_that_is_not_utf8_is_spelled_out() -> None:
    assert utf8(os.fsdecode(b"\xc4\xa3\xd0/\xe6\xa8\xa1")) == "ģ\\xd0/模"
