"""Verification names the file that is wrong."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.checkpoint.sources import run_conversion
from tests.models import write_llama
from tunan.checkpoint.convert import ConvertOptions
from tunan.checkpoint.manifest import Manifest
from tunan.checkpoint.verify import hash_file, total_bytes, verify

OPTIONS = ConvertOptions(block_bytes=300_000, tensor_parallel=2)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("verify")
    run_conversion(write_llama(base / "source"), base / "out", OPTIONS)
    return base / "out"


@pytest.fixture
def checkpoint(converted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(converted, tmp_path / "out"))


def problems(checkpoint: Path, manifest: Manifest | None = None) -> list[str]:
    manifest = manifest or Manifest.read(checkpoint)
    return [str(problem) for problem in verify(checkpoint, manifest, 3, lambda size: None)]


def test_an_untouched_checkpoint_has_no_problem_and_is_read_whole(converted: Path) -> None:
    manifest = Manifest.read(converted)
    read: list[int] = []
    assert verify(converted, manifest, 2, read.append) == []
    assert sum(read) == total_bytes(manifest)


def test_one_changed_bit_is_found(checkpoint: Path) -> None:
    file = sorted(checkpoint.rglob("*.safetensors"))[3]
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    (problem,) = problems(checkpoint)
    assert problem.startswith(f"{file.relative_to(checkpoint)}: its content is not what")


def test_a_truncated_block_is_named_with_both_sizes(checkpoint: Path) -> None:
    file = checkpoint / Manifest.read(checkpoint).blocks[0].file
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:-5])
    assert problems(checkpoint) == [f"{file.name}: has {size - 5} bytes, tunan.json says {size}"]


def test_missing_and_extra_files_are_named(checkpoint: Path) -> None:
    first = checkpoint / Manifest.read(checkpoint).blocks[0].file
    first.rename(checkpoint / "renamed.safetensors")
    (checkpoint / "tokenizer.json").unlink()
    assert problems(checkpoint) == [
        f"{first.name}: is missing",
        "tokenizer.json: is missing",
        "renamed.safetensors: is not in tunan.json; remove it",
    ]


def with_true_hashes(checkpoint: Path, *files: str) -> Manifest:
    """The manifest of somebody who edited files and fixed their hashes."""
    content = json.loads((checkpoint / "tunan.json").read_bytes())
    for item in (*content["blocks"], *content["files"]):
        if item["file"] in files:
            path = checkpoint / item["file"]
            item["bytes"] = path.stat().st_size
            item["sha256"] = hash_file(path, lambda size: None)
    (checkpoint / "tunan.json").write_text(json.dumps(content))
    return Manifest.read(checkpoint)


def test_an_index_that_points_to_the_wrong_block_is_found(checkpoint: Path) -> None:
    name = "model.safetensors.index.json"
    index = json.loads((checkpoint / name).read_bytes())
    first, *_, last = sorted(index["weight_map"])
    index["weight_map"][first] = index["weight_map"][last]
    (checkpoint / name).write_text(json.dumps(index))
    (problem,) = problems(checkpoint, with_true_hashes(checkpoint, name))
    assert problem.startswith(f"{name}: says {first} is in")


def test_a_tensor_the_index_does_not_list_is_found(checkpoint: Path) -> None:
    block = Manifest.read(checkpoint).blocks[0].file
    tensors = load_file(checkpoint / block)
    save_file(tensors | {"extra": next(iter(tensors.values())).clone()}, checkpoint / block)
    (problem,) = problems(checkpoint, with_true_hashes(checkpoint, block))
    assert problem == f"model.safetensors.index.json: does not list extra, which is in {block}"


def test_an_index_that_points_to_no_block_is_found(checkpoint: Path) -> None:
    name = "model.safetensors.index.json"
    index = json.loads((checkpoint / name).read_bytes())
    first = min(index["weight_map"])
    index["weight_map"][first] = "model-00099-of-00099.safetensors"
    (checkpoint / name).write_text(json.dumps(index))
    (problem,) = problems(checkpoint, with_true_hashes(checkpoint, name))
    assert problem.startswith(f"{name}: says {first} is in model-00099")


def test_a_block_that_was_taken_out_of_the_manifest_is_missed(checkpoint: Path) -> None:
    content = json.loads((checkpoint / "tunan.json").read_bytes())
    gone = content["blocks"].pop(0)["file"]
    (checkpoint / gone).unlink()
    (checkpoint / "tunan.json").write_text(json.dumps(content))
    (problem,) = problems(checkpoint)
    assert f"is in {gone}, where it is not" in problem


def test_an_index_that_was_taken_out_of_the_manifest_is_missed(checkpoint: Path) -> None:
    manifest = Manifest.read(checkpoint)
    files = tuple(f for f in manifest.files if f.file != "model.safetensors.index.json")
    (problem,) = problems(checkpoint, manifest.model_copy(update={"files": files}))
    assert problem.startswith("model.safetensors.index.json: is not in tunan.json")


@pytest.mark.parametrize("content", ["{}", "[]", '{"weight_map": {"a": []}}', "{"])
def test_a_damaged_index_with_a_true_hash_is_a_problem(checkpoint: Path, content: str) -> None:
    name = "model.safetensors.index.json"
    (checkpoint / name).write_text(content)
    (problem,) = problems(checkpoint, with_true_hashes(checkpoint, name))
    assert problem.startswith(f"{name}: ")


def test_a_device_or_pipe_in_place_of_a_file_is_not_read(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").unlink()
    (checkpoint / "tokenizer.json").symlink_to("/dev/zero")
    assert problems(checkpoint) == ["tokenizer.json: is not a regular file"]
