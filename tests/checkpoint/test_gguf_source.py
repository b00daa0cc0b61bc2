import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.gguf_files import write_gguf
from tests.models import write_deepseek_v2_lite, write_deepseek_v3, write_llama, write_qwen2
from tunan.checkpoint.gguf_config import llama3_factors
from tunan.checkpoint.gguf_source import open_gguf
from tunan.checkpoint.source import Source
from tunan.errors import CheckFailedError, UsageError

Q8_0 = gguf.GGMLQuantizationType.Q8_0
WRITERS = {
    "llama": write_llama,
    "qwen2": write_qwen2,
    "deepseek_v2": write_deepseek_v2_lite,
    "deepseek_v3": write_deepseek_v3,
}


def all_rows(source: Source, name: str) -> torch.Tensor:
    return source.rows(name, 0, source.tensors[name].shape[0])


def write_back(source: Source, path: Path) -> Path:
    """The source as a Hugging Face directory, by no code of Tunan's converter."""
    path.mkdir()
    save_file(
        {name: all_rows(source, name).clone() for name in source.tensors},
        path / "model.safetensors",
        {"format": "pt"},
    )
    (path / "config.json").write_text(json.dumps(dict(source.config)))
    for name, data in source.auxiliary.items():
        (path / name).write_bytes(data)
    return path


def logits(path: Path, tokens: list[int]) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.no_grad():
        result: torch.Tensor = model(torch.tensor([tokens])).logits
    return result


@pytest.mark.parametrize("family", WRITERS)
def test_tensors_come_back_with_their_names_and_rows_in_order(family: str, tmp_path: Path) -> None:
    model = WRITERS[family](tmp_path / "hf")
    source = open_gguf(write_gguf(tmp_path / "m.gguf", model))
    expected = load_file(model / "model.safetensors")
    assert source.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(all_rows(source, name), tensor.float()), name


@pytest.mark.parametrize("family", WRITERS)
def test_transformers_computes_the_same_logits_from_the_gguf(family: str, tmp_path: Path) -> None:
    model = WRITERS[family](tmp_path / "hf", tie_word_embeddings=family == "llama")
    again = write_back(open_gguf(write_gguf(tmp_path / "m.gguf", model)), tmp_path / "again")
    tokens = [0, 17, 300, 5, 999, 42, 41, 40]
    torch.testing.assert_close(logits(again, tokens), logits(model, tokens), rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3"])
def test_a_deepseek_config_is_the_original_models(family: str, tmp_path: Path) -> None:
    model = WRITERS[family](tmp_path / "hf")
    config = dict(open_gguf(write_gguf(tmp_path / "m.gguf", model)).config)
    original = json.loads((model / "config.json").read_text())
    assert config.pop("rope_scaling") == original.pop("rope_scaling") | {"rope_type": "yarn"}
    same = set(config) & set(original)
    assert {key: config[key] for key in same} == {key: original[key] for key in same}
    assert {"q_lora_rank", "topk_method", "n_group", "qk_nope_head_dim", "v_head_dim"} <= same


@pytest.mark.parametrize("bounds", [(0, 1), (60, 70), (64, 128), (127, 300), (5, 5)])
def test_any_rows_of_joined_heads_can_be_asked_for(bounds: tuple[int, int], tmp_path: Path) -> None:
    model = write_deepseek_v3(tmp_path / "hf")
    source = open_gguf(write_gguf(tmp_path / "m.gguf", model))
    name = "model.layers.1.self_attn.kv_b_proj.weight"
    expected = load_file(model / "model.safetensors")[name].float()
    assert torch.equal(source.rows(name, *bounds), expected[slice(*bounds)])
    source.release(name)
    assert torch.equal(source.rows(name, *bounds), expected[slice(*bounds)])


def test_releasing_one_expert_leaves_the_others(tmp_path: Path) -> None:
    model = write_deepseek_v3(tmp_path / "hf")
    source = open_gguf(write_gguf(tmp_path / "m.gguf", model))
    expected = load_file(model / "model.safetensors")
    for expert in range(8):
        name = f"model.layers.1.mlp.experts.{expert}.down_proj.weight"
        assert torch.equal(all_rows(source, name), expected[name].float())
        source.release(name)


@pytest.mark.parametrize("bounds", [(0, 1), (3, 70), (64, 128), (130, 131), (5, 5)])
def test_any_rows_of_a_reordered_tensor_can_be_asked_for(
    bounds: tuple[int, int], tmp_path: Path
) -> None:
    model = write_llama(tmp_path / "hf")
    source = open_gguf(write_gguf(tmp_path / "m.gguf", model))
    name = "model.layers.1.self_attn.q_proj.weight"
    expected = load_file(model / "model.safetensors")[name].float()
    assert torch.equal(source.rows(name, *bounds), expected[slice(*bounds)])


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "F16", "BF16"])
def test_rows_are_dequantised_as_the_gguf_package_does(kind: str, tmp_path: Path) -> None:
    model = write_llama(tmp_path / "hf")
    of_kind = gguf.GGMLQuantizationType[kind]
    path = write_gguf(tmp_path / "m.gguf", model, of_kind)
    source = open_gguf(path)
    stored = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.2.ffn_down.weight")
    expected = torch.from_numpy(gguf.dequantize(stored.data, of_kind))
    name = "model.layers.2.mlp.down_proj.weight"
    assert source.tensors[name].dtype == (kind if kind in ("F16", "BF16") else "F32")
    assert source.tensors[name].stored_bytes == stored.n_bytes
    assert torch.equal(source.rows(name, 10, 21).float(), expected[10:21])
    source.release(name)
    assert torch.equal(all_rows(source, name).float(), expected)


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"])
def test_k_quants_are_dequantised_in_rows_as_in_whole(kind: str, tmp_path: Path) -> None:
    """The gguf package cannot write these, so the blocks are any bytes with small scales."""
    of_kind = gguf.GGMLQuantizationType[kind]
    block, block_bytes = gguf.GGML_QUANT_SIZES[of_kind]
    data = np.random.default_rng(0).integers(0, 60, (1000, 256 // block * block_bytes), np.uint8)
    path = tmp_path / "m.gguf"
    write_gguf(path, write_llama(tmp_path / "hf"), metadata={"replace": "none"})
    reader = gguf.GGUFReader(path)
    writer = copy_of(tmp_path / "k.gguf", reader, without="token_embd.weight")
    writer.add_tensor("token_embd.weight", data, raw_dtype=of_kind)
    finish(writer)
    source = open_gguf(tmp_path / "k.gguf")
    expected = torch.from_numpy(gguf.dequantize(data, of_kind))
    assert torch.equal(source.rows("model.embed_tokens.weight", 7, 40), expected[7:40])


def copy_of(path: Path, reader: gguf.GGUFReader, without: str) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, "llama")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            writer.add_key_value(
                key,
                field.contents(),
                field.types[0],
                field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None,
            )
    for tensor in reader.tensors:
        if tensor.name != without:
            writer.add_tensor(tensor.name, np.array(tensor.data))
    return writer


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_the_config_is_the_original_models(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "hf", head_dim=32, rope_theta=500000.0, rms_norm_eps=1e-5)
    config = open_gguf(write_gguf(tmp_path / "m.gguf", model)).config
    original = json.loads((model / "config.json").read_text())
    same = set(config) & set(original)
    assert {key: config[key] for key in same} == {key: original[key] for key in same}
    assert {"rms_norm_eps", "rope_theta", "head_dim", "vocab_size", "architectures"} <= same


def test_plainly_stored_rows_share_the_mapped_memory(tmp_path: Path) -> None:
    source = open_gguf(write_gguf(tmp_path / "m.gguf", write_llama(tmp_path / "hf")))
    name = "model.layers.0.mlp.up_proj.weight"
    assert source.rows(name, 0, 4).data_ptr() == source.rows(name, 0, 9).data_ptr()


def test_llama3_rope_scaling_is_found_from_the_factors(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    model = write_llama(tmp_path / "hf", rope_theta=500000.0)
    factors = llama3_factors(500000.0, 64, scaling)
    path = write_gguf(tmp_path / "m.gguf", model, factors=factors)
    assert open_gguf(path).config["rope_scaling"] == scaling
    with pytest.raises(UsageError, match=r"other than Llama 3\.1's"):
        open_gguf(write_gguf(tmp_path / "odd.gguf", model, factors=np.linspace(1, 8, 32)))


def test_llama3_factors_are_those_of_transformers() -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling: dict[str, Any] = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_theta": 500000.0,
    }
    config = LlamaConfig(head_dim=128, rope_parameters=scaling, max_position_embeddings=131072)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 500000.0 ** -(np.arange(0, 128, 2) / 128)
    np.testing.assert_allclose(
        plain / scaled.double().numpy(), llama3_factors(500000.0, 128, scaling), rtol=1e-5
    )


def test_linear_rope_scaling_is_carried(tmp_path: Path) -> None:
    entries = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    path = write_gguf(tmp_path / "m.gguf", write_llama(tmp_path / "hf"), metadata=entries)
    scaling = open_gguf(path).config["rope_scaling"]
    assert (scaling["rope_type"], scaling["factor"]) == ("linear", 4.0)


def test_a_split_file_is_read_as_one(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "hf")
    whole = gguf.GGUFReader(write_gguf(tmp_path / "m.gguf", model))
    for number in range(2):
        part = tmp_path / f"m-{number + 1:05d}-of-00002.gguf"
        writer = copy_of(part, whole, without="") if not number else gguf.GGUFWriter(part, "llama")
        for name in list(writer.tensors[0]):
            if not name.startswith("blk.0"):
                del writer.tensors[0][name]
        if number:
            for tensor in whole.tensors:
                if not tensor.name.startswith("blk.0"):
                    writer.add_tensor(tensor.name, np.array(tensor.data))
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 2)
        finish(writer)
    source = open_gguf(tmp_path / "m-00001-of-00002.gguf")
    assert source.tensors.keys() == load_file(model / "model.safetensors").keys()
    with pytest.raises(UsageError, match="give the first"):
        open_gguf(tmp_path / "m-00002-of-00002.gguf")
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(CheckFailedError, match=r"m-00002-of-00002\.gguf: this part .* is missing"):
        open_gguf(tmp_path / "m-00001-of-00002.gguf")


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.add_tensor("token_embd.weight", np.ones((4, 4), np.float32))
    finish(writer)
    with pytest.raises(UsageError, match="GGUF architecture 'mamba'; Tunan reads llama"):
        open_gguf(tmp_path / "m.gguf")


def test_a_tensor_without_a_place_in_the_model_is_named(tmp_path: Path) -> None:
    reader = gguf.GGUFReader(write_gguf(tmp_path / "m.gguf", write_llama(tmp_path / "hf")))
    writer = copy_of(tmp_path / "odd.gguf", reader, without="")
    writer.add_tensor("blk.0.mystery.weight", np.ones(4, np.float32))
    finish(writer)
    with pytest.raises(CheckFailedError, match=r"tensor 'blk\.0\.mystery\.weight' has no place"):
        open_gguf(tmp_path / "odd.gguf")


def test_the_fingerprint_survives_a_copy_and_tells_another_model(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", write_llama(tmp_path / "hf"))
    other = write_gguf(tmp_path / "o.gguf", write_llama(tmp_path / "other", seed=7))
    before = open_gguf(path).fingerprint()
    (tmp_path / "elsewhere").mkdir()
    copy = shutil.copy(path, tmp_path / "elsewhere" / "m.gguf")
    assert open_gguf(Path(copy)).fingerprint() == before
    assert open_gguf(other).fingerprint() != before
