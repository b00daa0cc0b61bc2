import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.memory import resident
from tests.models import write_llama
from tunan.checkpoint import torch_source
from tunan.checkpoint.source import open_source
from tunan.errors import CheckFailedError, UsageError

EMBEDDING = "model.embed_tokens.weight"
INDEX = "pytorch_model.bin.index.json"


class Code:
    """What a malicious checkpoint holds: unpickling it would run a command."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch the-pickle-ran",)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, torch.Tensor]]:
    """A Hugging Face directory without its weights, and the weights."""
    monkeypatch.chdir(tmp_path)  # where `Code` would leave its trace
    path = write_llama(tmp_path / "model")
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    return path, tensors


Model = tuple[Path, dict[str, torch.Tensor]]


def refusal(path: Path) -> str:
    with pytest.raises(CheckFailedError) as caught:
        open_source(path)
    return str(caught.value)


def assert_holds(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    source = open_source(path)
    assert source.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(source.rows(name, 0, tensor.shape[0]), tensor)
        source.release(name)
        assert torch.equal(source.rows(name, 1, 3), tensor[1:3])


def write_shards(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    names = list(tensors)
    parts = {
        "pytorch_model-00001-of-00002.bin": names[:9],
        "pytorch_model-00002-of-00002.bin": names[9:],
    }
    for file, part in parts.items():
        torch.save({name: tensors[name].clone() for name in part}, path / file)
    weight_map = {name: file for file, part in parts.items() for name in part}
    (path / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def test_a_single_bin_is_read(model: Model) -> None:
    path, tensors = model
    torch.save(tensors, path / "pytorch_model.bin")
    assert_holds(path, tensors)


def test_sharded_bins_are_read(model: Model) -> None:
    path, tensors = model
    write_shards(path, tensors)
    assert_holds(path, tensors)


def test_a_missing_bin_shard_is_named(model: Model) -> None:
    path, tensors = model
    write_shards(path, tensors)
    (path / "pytorch_model-00002-of-00002.bin").unlink()
    assert "pytorch_model-00002-of-00002.bin: this shard is missing" in refusal(path)


def test_bin_shards_without_their_index_are_refused(model: Model) -> None:
    path, tensors = model
    write_shards(path, tensors)
    (path / INDEX).unlink()
    assert f"{INDEX}: missing" in refusal(path)


def test_an_index_that_disagrees_with_a_bin_is_refused(model: Model) -> None:
    path, tensors = model
    write_shards(path, tensors)
    index = json.loads((path / INDEX).read_text())
    index["weight_map"]["ghost"] = "pytorch_model-00001-of-00002.bin"
    (path / INDEX).write_text(json.dumps(index))
    assert "tensor 'ghost' is not in it" in refusal(path)


def test_safetensors_win_over_bins(tmp_path: Path) -> None:
    path = write_llama(tmp_path)
    torch.save({"only.in.bin": torch.ones(1)}, path / "pytorch_model.bin")
    assert "only.in.bin" not in open_source(path).tensors


@pytest.mark.parametrize("new_format", [True, False])
def test_a_pickle_that_carries_code_is_named_and_does_not_run(
    model: Model, new_format: bool
) -> None:
    path, tensors = model
    file = path / "pytorch_model.bin"
    torch.save({"a": Code(), **tensors}, file, _use_new_zipfile_serialization=new_format)
    assert f"{file}: a pickle that carries code" in refusal(path)
    assert "safetensors" in refusal(path)
    assert not Path("the-pickle-ran").exists()


def test_a_bare_pickle_that_carries_code_does_not_run(model: Model) -> None:
    path, _ = model
    (path / "pytorch_model.bin").write_bytes(pickle.dumps(Code()))
    assert "a pickle that carries code" in refusal(path)
    assert not Path("the-pickle-ran").exists()


@pytest.mark.parametrize("keep", [0, 3, 1000, -20])
def test_a_truncated_bin_is_named(model: Model, keep: int) -> None:
    path, tensors = model
    file = path / "pytorch_model.bin"
    torch.save(tensors, file)
    file.write_bytes(file.read_bytes()[:keep])
    message = refusal(path)
    assert message.startswith(f"{file}: ")
    assert "\n" not in message


def test_tied_names_are_both_read_or_the_head_dropped_as_the_config_says(model: Model) -> None:
    path, tensors = model
    torch.save(tensors | {"lm_head.weight": tensors[EMBEDDING]}, path / "pytorch_model.bin")
    untied = open_source(path)
    assert torch.equal(untied.rows("lm_head.weight", 0, 5), untied.rows(EMBEDDING, 0, 5))
    config = json.loads((path / "config.json").read_text()) | {"tie_word_embeddings": True}
    (path / "config.json").write_text(json.dumps(config))
    assert "lm_head.weight" not in open_source(path).tensors


def test_views_of_one_storage_are_read_each_for_itself(model: Model) -> None:
    path, _ = model
    whole = torch.arange(24.0).reshape(4, 6)
    torch.save({"whole": whole, "left": whole[:, :2], "turned": whole.T}, path / "m.bin")
    source = open_source(path / "m.bin")
    assert torch.equal(source.rows("left", 1, 3), whole[1:3, :2])
    assert torch.equal(source.rows("turned", 0, 6), whole.T)
    source.release("turned")


def test_the_old_format_is_read_up_to_a_size(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    path, tensors = model
    file = path / "pytorch_model.bin"
    torch.save(tensors, file, _use_new_zipfile_serialization=False)
    assert_holds(path, tensors)
    monkeypatch.setattr(torch_source, "LEGACY_LIMIT", 1 << 20)
    assert f"{file}: in PyTorch's old format" in refusal(path)
    assert "torch.save it again" in refusal(path)


@pytest.mark.parametrize("key", ["state_dict", "model"])
def test_a_wrapped_and_prefixed_state_dict_is_unwrapped(model: Model, key: str) -> None:
    path, tensors = model
    wrapped = {f"module.{name}": tensor for name, tensor in tensors.items()}
    torch.save({key: wrapped, "epoch": 3}, path / "model.pt")
    assert_holds(path / "model.pt", tensors)


def test_a_state_dict_needs_a_config_beside_it_or_named(model: Model, tmp_path: Path) -> None:
    path, tensors = model
    alone = tmp_path / "alone.pt"
    torch.save(tensors, alone)
    with pytest.raises(UsageError, match=r"put its config\.json"):
        open_source(alone)
    source = open_source(alone, path / "config.json")
    assert source.config["model_type"] == "llama"
    assert "tokenizer.json" in source.auxiliary


def test_what_is_no_state_dict_is_refused(model: Model) -> None:
    path, _ = model
    torch.save([torch.ones(1)], path / "list.pt")
    assert "not a state dict" in refusal(path / "list.pt")


def test_a_sparse_tensor_is_named(model: Model) -> None:
    path, _ = model
    torch.save(
        {
            "s": torch.sparse_coo_tensor(
                torch.zeros(1, 1, dtype=torch.int64), torch.ones(1), check_invariants=True
            )
        },
        path / "sparse.pt",
    )
    assert "tensor 's': only plain dense" in refusal(path / "sparse.pt")


def test_reading_a_bin_costs_no_anonymous_memory(model: Model) -> None:
    path, _ = model
    size = 64 << 20
    torch.save({"big": torch.ones(size // 4)}, path / "pytorch_model.bin")
    source = open_source(path)
    before = resident("RssAnon"), resident("RssFile")
    assert source.rows("big", 0, size // 4).sum() == size // 4
    assert resident("RssFile") - before[1] > size * 0.9
    source.release("big")
    assert resident("RssFile") - before[1] < size * 0.1
    assert resident("RssAnon") - before[0] < size * 0.25


def test_parameters_are_read_as_plain_tensors(model: Model) -> None:
    path, tensors = model
    parameters = {name: torch.nn.Parameter(tensor) for name, tensor in tensors.items()}
    torch.save(parameters, path / "pytorch_model.bin")
    assert_holds(path, tensors)
    assert not open_source(path).rows(EMBEDDING, 0, 1).requires_grad
