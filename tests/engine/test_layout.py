import json
import shutil
from pathlib import Path

import pytest

from tests.engine.converted import convert
from tunan.checkpoint.manifest import Manifest
from tunan.engine.layout import PlannedBlock, mismatch, plain_blocks, rank_blocks
from tunan.errors import CheckFailedError


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert("llama", tmp_path_factory.mktemp("m"), "--tensor-parallel-size", "2")


@pytest.fixture
def directory(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "m"))


def plan(directory: Path) -> list[PlannedBlock]:
    return plain_blocks(directory, Manifest.read(directory), lambda _: True)


def names(blocks: list[PlannedBlock]) -> list[str]:
    return [tensor.name for block in blocks for tensor in block.tensors]


def test_plain_blocks_leave_the_rank_blocks_out(directory: Path) -> None:
    assert "model.layers.0.self_attn.q_proj.weight" in names(plan(directory))
    assert "model.layers.0.self_attn.qkv_proj.weight" not in names(plan(directory))


def test_a_block_with_nothing_needed_is_left_out(directory: Path) -> None:
    blocks = plain_blocks(directory, Manifest.read(directory), lambda name: "lm_head" in name)
    assert names(blocks) == ["lm_head.weight"]
    assert not blocks[0].whole


def test_rank_blocks_are_those_of_the_asked_degree_and_rank(directory: Path) -> None:
    manifest = Manifest.read(directory)
    first, second = (rank_blocks(directory, manifest, 2, r, lambda _: True) for r in range(2))
    assert names(first) == names(second)
    assert all("tensor-parallel-2/rank-1/" in str(block.path) for block in second)
    assert rank_blocks(directory, manifest, 4, 0, lambda _: True) == []


def test_a_missing_block_is_named(directory: Path) -> None:
    gone = plan(directory)[0].path
    gone.unlink()
    with pytest.raises(CheckFailedError, match=f"{gone.name}: this block is missing"):
        plan(directory)


def test_a_block_of_another_size_is_named(directory: Path) -> None:
    block = plan(directory)[0]
    with block.path.open("r+b") as file:
        file.truncate(block.bytes - 1)
    with pytest.raises(CheckFailedError, match=f"{block.path.name}: has {block.bytes - 1} bytes"):
        plan(directory)


def test_a_block_with_a_damaged_header_is_named(directory: Path) -> None:
    path = plan(directory)[0].path
    with path.open("r+b") as file:
        file.seek(8)
        file.write(b"[")
    with pytest.raises(CheckFailedError, match=f"{path.name}: damaged header"):
        plan(directory)


def test_a_tensor_in_two_blocks_is_named_with_both(directory: Path) -> None:
    first, *_, last = Manifest.read(directory).blocks_of(None)
    content = json.loads((directory / "tunan.json").read_text())
    shutil.copy(directory / first.file, directory / last.file)
    for block in content["blocks"]:
        if block["file"] == last.file:
            block["bytes"] = first.bytes
    (directory / "tunan.json").write_text(json.dumps(content))
    with pytest.raises(CheckFailedError, match=f"{last.file}: tensor '.*' is in {first.file} too"):
        plan(directory)


def test_a_configuration_that_was_edited_is_named(directory: Path) -> None:
    config = directory / "config.json"
    config.write_text(config.read_text().replace("10000.0", "20000.0"))
    with pytest.raises(CheckFailedError, match=r"config\.json: its content is not what tunan"):
        plan(directory)


def test_blocks_that_fit_have_no_mismatch(directory: Path) -> None:
    blocks = rank_blocks(directory, Manifest.read(directory), 2, 0, lambda _: True)
    shapes = {tensor.name: tensor.shape for block in blocks for tensor in block.tensors}
    assert mismatch(blocks, shapes) is None
    assert mismatch(blocks, shapes | {"new": (1,)}) == "they have no new"
    first = names(blocks)[0]
    assert mismatch(blocks, shapes, {first}) == (
        f"{first} is BF16 there and integers in the engine"
    )
    name = next(iter(shapes))
    assert f"{name} is" in str(mismatch(blocks, shapes | {name: (1, 2)}))
    del shapes[name]
    assert mismatch(blocks, shapes) == f"the engine has no {name}"
