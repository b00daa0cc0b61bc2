import ast
import json
from pathlib import Path

import pytest

import tunan.checkpoint.source
from tests.models import write_llama
from tunan.checkpoint.source import open_source
from tunan.errors import CheckFailedError, TunanError, UsageError

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 134\n"


def refusal(path: Path, kind: type[TunanError] = UsageError) -> str:
    with pytest.raises(kind) as caught:
        open_source(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_missing_path_is_refused(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "nothing")


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    assert "empty" in refusal(tmp_path)


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert "no weights here" in refusal(tmp_path)


def test_a_directory_with_only_a_gguf_says_to_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert "to convert model.gguf give its own path" in refusal(tmp_path)


def test_an_unknown_kind_of_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\x08\x07")
    assert "not a checkpoint Tunan reads" in refusal(tmp_path / "model.onnx")


def test_a_single_safetensors_file_says_to_give_its_directory(tmp_path: Path) -> None:
    path = write_llama(tmp_path) / "model.safetensors"
    assert "give the directory" in refusal(path)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.pt").touch()
    assert "the file is empty" in refusal(tmp_path / "model.pt", CheckFailedError)


def test_a_gguf_file_with_another_magic_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"ggml" + bytes(100))
    assert "does not begin with 'GGUF'" in refusal(tmp_path / "model.gguf", CheckFailedError)


@pytest.mark.parametrize("name", ["m.gguf", "m.pt", "m.bin"])
def test_a_git_lfs_pointer_is_recognised_in_any_kind_of_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(POINTER)
    assert "git lfs pull" in refusal(tmp_path / name, CheckFailedError)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_git_lfs_pointer_in_a_directory_is_named(tmp_path: Path, name: str) -> None:
    path = write_llama(tmp_path)
    (path / name).write_bytes(POINTER)
    assert f"{path / name}: this is a git-lfs pointer" in refusal(path, CheckFailedError)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    path = write_llama(tmp_path)
    (path / "tokenizer.json").unlink()
    assert "no tokenizer here" in refusal(path)


@pytest.mark.parametrize("text", ["", "{", "[]", '"text"'])
def test_a_damaged_config_is_named(tmp_path: Path, text: str) -> None:
    path = write_llama(tmp_path)
    (path / "config.json").write_text(text)
    assert f"{path / 'config.json'}: not " in refusal(path, CheckFailedError)


def test_a_missing_config_is_named(tmp_path: Path) -> None:
    path = write_llama(tmp_path)
    (path / "config.json").unlink()
    assert f"{path / 'config.json'}: missing" in refusal(path, CheckFailedError)


def test_the_tokenizer_travels_and_code_does_not(tmp_path: Path) -> None:
    path = write_llama(tmp_path)
    (path / "modeling_evil.py").write_text("raise SystemExit")
    (path / "unknown.dat").write_bytes(bytes(10))
    (path / "chat_template.jinja").write_text("{{ messages }}")
    carried = open_source(path).auxiliary
    assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} <= carried.keys()
    assert not {"modeling_evil.py", "unknown.dat", "config.json"} & carried.keys()
    assert carried["tokenizer.json"] == (path / "tokenizer.json").read_bytes()


def test_the_config_does_not_ask_for_code_that_is_not_carried(tmp_path: Path) -> None:
    path = write_llama(tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoConfig": "evil.C"}}))
    assert open_source(path).config == config


def test_a_separate_config_is_for_single_files_only(tmp_path: Path) -> None:
    path = write_llama(tmp_path)
    with pytest.raises(UsageError, match="for single state-dict files only"):
        open_source(path, path / "config.json")


def test_the_interface_alone_imports_no_torch() -> None:
    tree = ast.parse(Path(tunan.checkpoint.source.__file__).read_text())
    imported = {
        name.name for node in tree.body if isinstance(node, ast.Import) for name in node.names
    } | {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert not any((name or "").startswith(("torch", "gguf", "transformers")) for name in imported)


def test_a_link_to_a_blob_that_is_gone_is_named(tmp_path: Path) -> None:
    path = write_llama(tmp_path)
    (path / "model.safetensors").rename(tmp_path / "blob")
    (path / "model.safetensors").symlink_to("blob")
    assert open_source(path).tensors
    (tmp_path / "blob").unlink()
    assert "model.safetensors: leads to a file that is gone" in refusal(path, CheckFailedError)
