"""Which layers are quantised, and that an engine is told the same."""

import importlib
import warnings
from typing import Any

import pytest

from tunan.checkpoint.architectures import expected_tensors
from tunan.checkpoint.quantize.compressed_tensors import quantization_config
from tunan.checkpoint.quantize.scheme import WeightScheme
from tunan.checkpoint.quantize.which_layers import check_groups, ignored, is_quantised
from tunan.errors import UsageError

FAMILIES = ("llama", "moe", "v3", "v32")


@pytest.fixture(params=FAMILIES)
def config(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = request.getfixturevalue(request.param)
    return found


def quantised(config: dict[str, Any]) -> set[str]:
    shapes = expected_tensors(config)
    return {name for name, shape in shapes.items() if is_quantised(config, name, shape)}


def test_every_matrix_is_quantised_or_ignored_and_none_is_both(config: dict[str, Any]) -> None:
    """An engine builds an int8 layer for every linear layer that `ignore` does not name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates what this import still uses
        matched = importlib.import_module("compressed_tensors.utils.match").match_name
    matrices = {n for n, shape in expected_tensors(config).items() if len(shape) == 2}
    skipped = {
        name
        for name in matrices
        if any(matched(name.removesuffix(".weight"), pattern) for pattern in ignored(config))
    }
    embeddings = {name for name in matrices if "embed_tokens" in name}
    assert quantised(config) == matrices - skipped - embeddings


def test_projections_and_experts_are_quantised_and_the_router_is_not(moe: dict[str, Any]) -> None:
    found = quantised(moe)
    assert "model.layers.1.mlp.experts.3.down_proj.weight" in found
    assert "model.layers.1.mlp.shared_experts.up_proj.weight" in found
    assert "model.layers.0.self_attn.q_proj.weight" in found
    assert not [name for name in found if ".gate." in name]


def test_what_latent_attention_fuses_or_multiplies_apart_is_left(v3: dict[str, Any]) -> None:
    found = {name.rsplit(".", 2)[-2] for name in quantised(v3) if "self_attn" in name}
    assert found == {"q_b_proj", "o_proj"}


def test_a_prediction_layer_s_own_weights_are_quantised_like_any_other(v3: dict[str, Any]) -> None:
    found = quantised(v3)
    assert "model.layers.3.mlp.experts.0.up_proj.weight" in found
    assert "model.layers.3.eh_proj.weight" not in found
    assert "model.layers.3.shared_head.head.weight" not in found


def test_layers_of_one_fused_parameter_agree(config: dict[str, Any]) -> None:
    fused = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
    latent = ("q_a_proj", "kv_a_proj_with_mqa")
    names = expected_tensors(config)
    found = quantised(config)
    for group in (*fused, latent):
        first, *others = group
        for name in names:
            for other in others:
                partner = name.replace(f".{first}.", f".{other}.")
                if partner != name and partner in names and name.endswith("weight"):
                    assert (name in found) == (partner in found)


def test_the_configuration_asks_for_int8_by_channel_and_token(llama: dict[str, Any]) -> None:
    config = quantization_config(llama, WeightScheme())
    group = config["config_groups"]["group_0"]
    assert config["format"] == "int-quantized"
    assert (group["weights"]["num_bits"], group["weights"]["strategy"]) == (8, "channel")
    assert not group["weights"]["dynamic"]
    inputs = group["input_activations"]
    assert (inputs["num_bits"], inputs["strategy"], inputs["dynamic"]) == (8, "token", True)


def test_a_group_that_does_not_divide_the_inputs_is_refused(llama: dict[str, Any]) -> None:
    shapes = expected_tensors(llama)  # 64 wide, 96 inside
    check_groups(llama, shapes, WeightScheme(bits=4, group=32), 1)
    with pytest.raises(UsageError, match="96 inputs are not a multiple of the group size 64"):
        check_groups(llama, shapes, WeightScheme(bits=4, group=64), 1)
    with pytest.raises(UsageError, match="each of 4 ranks has 16 of its inputs"):
        check_groups(llama, shapes, WeightScheme(bits=4, group=32), 4)


def test_a_tensor_the_architecture_does_not_have_is_left(llama: dict[str, Any]) -> None:
    assert not is_quantised(llama, "model.layers.0.extra.up_proj.weight", (4, 4))
