"""The inventory of expected tensors, against the real family where its facts are at hand."""

import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tunan.checkpoint.architectures import (
    ARCHITECTURES,
    Shape,
    architecture_of,
    expected_tensors,
    is_recomputed,
    layer_of,
)
from tunan.errors import CheckFailedError, UsageError

FACTS = Path(__file__).parents[3] / "shared" / "models"
KNOWN = [
    path
    for path in sorted(FACTS.glob("*.json"))
    if json.loads(path.read_bytes())["architectures"][0] in ARCHITECTURES
]


@pytest.mark.skipif(not KNOWN, reason="the model facts are not beside this checkout")
@pytest.mark.parametrize("path", KNOWN, ids=lambda path: path.stem)
def test_the_inventory_of_every_real_model_is_what_its_checkpoint_holds(path: Path) -> None:
    config = json.loads(path.read_bytes())
    assert expected_tensors(config) == dict(_stored(config["_facts"]["tensor_patterns"]))


def _stored(patterns: list[dict[str, Any]]) -> Iterator[tuple[str, Shape]]:
    for pattern in patterns:
        keys = re.findall(r"\{(\w)\}", pattern["name"])
        for values in product(*(_range(pattern[key]) for key in keys)):
            name = pattern["name"].format(**dict(zip(keys, values, strict=True)))
            yield name, tuple(pattern["shape"])


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def test_an_unknown_architecture_is_named_together_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"DeepseekV4ForCausalLM.*DeepseekV3ForCausalLM"):
        architecture_of({"architectures": ["DeepseekV4ForCausalLM"]})


def test_a_configuration_without_an_architecture_is_refused() -> None:
    with pytest.raises(UsageError, match="none"):
        architecture_of({})


def test_a_configuration_without_a_size_is_refused_by_its_key() -> None:
    with pytest.raises(CheckFailedError, match="hidden_size"):
        expected_tensors({"architectures": ["LlamaForCausalLM"]})


def test_tied_embeddings_need_no_head(llama: dict[str, Any]) -> None:
    assert "lm_head.weight" in expected_tensors(llama)
    assert "lm_head.weight" not in expected_tensors(llama | {"tie_word_embeddings": True})


def test_llama_biases_follow_the_configuration(llama: dict[str, Any]) -> None:
    biased = expected_tensors(llama | {"attention_bias": True, "mlp_bias": True})
    assert biased["model.layers.0.self_attn.o_proj.bias"] == (64,)
    assert biased["model.layers.0.mlp.down_proj.bias"] == (64,)
    assert not any(name.endswith(".bias") for name in expected_tensors(llama))


def test_expert_layers_follow_frequency_and_first_dense_layers(moe: dict[str, Any]) -> None:
    tensors = expected_tensors(moe | {"num_hidden_layers": 5, "moe_layer_freq": 2})
    routed = {layer_of(name) for name in tensors if name.endswith("mlp.gate.weight")}
    assert routed == {2, 4}


def test_layers_are_read_from_names() -> None:
    assert layer_of("model.layers.61.eh_proj.weight") == 61
    assert layer_of("model.embed_tokens.weight") is None


def test_rotary_frequencies_are_recomputed() -> None:
    assert is_recomputed("model.layers.0.self_attn.rotary_emb.inv_freq")
    assert not is_recomputed("model.norm.weight")


@pytest.mark.parametrize("named", [True, 5, "LlamaForCausalLM", {"a": 1}, [["x"]], [{}]])
def test_an_architecture_of_another_kind_than_a_list_of_one_name_is_refused(named: object) -> None:
    with pytest.raises(UsageError, match="unknown architecture"):
        architecture_of({"architectures": named})


@pytest.mark.parametrize("value", ["abc", [1], float("inf"), 1.5, -1, True])
@pytest.mark.parametrize(
    "key",
    ["head_dim", "num_key_value_heads", "num_nextn_predict_layers", "first_k_dense_replace"],
)
def test_an_optional_size_of_another_kind_is_named(
    llama: dict[str, Any], v3: dict[str, Any], key: str, value: object
) -> None:
    config = llama if key in ("head_dim", "num_key_value_heads") else v3
    with pytest.raises(CheckFailedError, match=f"{key} must be a whole number"):
        expected_tensors(config | {key: value})
