"""A rank's parameters, against slicing written down independently with torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tunan.checkpoint.architectures import ARCHITECTURES, expected_tensors
from tunan.checkpoint.parallel import FusedParameter, check_degree, degrees, fused_parameters
from tunan.errors import UsageError

FACTS = Path(__file__).parents[3] / "shared" / "models"


def full_tensors(config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Random tensors of every expected name and shape."""
    torch.manual_seed(0)
    return {name: torch.randn(shape) for name, shape in expected_tensors(config).items()}


def assemble(parameter: FusedParameter, tensors: Mapping[str, Tensor]) -> Tensor:
    """What the parts of a parameter come to."""
    pieces = []
    for part in parameter.parts:
        if part.tensor is None:
            pieces.append(torch.zeros(part.rows, *parameter.shape[1:]))
            continue
        rows = tensors[part.tensor][part.start : part.stop]
        pieces.append(rows if part.columns is None else rows[:, slice(*part.columns)])
    return torch.cat(pieces).reshape(parameter.shape)


def ranks(config: Mapping[str, Any], degree: int) -> list[dict[str, Tensor]]:
    """Every rank's parameters by name."""
    tensors = full_tensors(config)
    return [
        {p.name: assemble(p, tensors) for p in fused_parameters(config, degree, rank)}
        for rank in range(degree)
    ]


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_query_key_and_value_are_fused_by_whole_heads(llama: dict[str, Any], degree: int) -> None:
    full = full_tensors(llama)
    for rank, parameters in enumerate(ranks(llama, degree)):
        name = "model.layers.1.self_attn."
        expected = [full[f"{name}{part}_proj.weight"].chunk(degree)[rank] for part in "qkv"]
        assert torch.equal(parameters[name + "qkv_proj.weight"], torch.cat(expected))


def test_key_value_heads_are_repeated_when_there_are_more_ranks(llama: dict[str, Any]) -> None:
    full = full_tensors(llama)
    keys = full["model.layers.0.self_attn.k_proj.weight"].view(4, 8, 64)
    for rank, parameters in enumerate(ranks(llama, 8)):
        fused = parameters["model.layers.0.self_attn.qkv_proj.weight"]
        assert fused.shape == (8 + 8 + 8, 64)
        assert torch.equal(fused[8:16], keys[rank // 2])


def test_biases_are_cut_with_columns_and_stay_whole_with_rows(llama: dict[str, Any]) -> None:
    config = llama | {"attention_bias": True, "mlp_bias": True}
    full = full_tensors(config)
    for rank, parameters in enumerate(ranks(config, 2)):
        prefix = "model.layers.2."
        gate, up = (full[f"{prefix}mlp.{part}_proj.bias"].chunk(2)[rank] for part in ("gate", "up"))
        assert torch.equal(parameters[prefix + "mlp.gate_up_proj.bias"], torch.cat([gate, up]))
        whole = full[prefix + "self_attn.o_proj.bias"]
        assert torch.equal(parameters[prefix + "self_attn.o_proj.bias"], whole)


def test_rows_of_output_and_down_projections_are_cut(llama: dict[str, Any]) -> None:
    full = full_tensors(llama)
    for rank, parameters in enumerate(ranks(llama, 4)):
        for name in (
            "model.layers.0.self_attn.o_proj.weight",
            "model.layers.0.mlp.down_proj.weight",
        ):
            assert torch.equal(parameters[name], full[name].chunk(4, dim=1)[rank])


def test_the_vocabulary_is_padded_with_zeros_and_cut(llama: dict[str, Any]) -> None:
    full = full_tensors(llama)
    padded = torch.cat([full["lm_head.weight"], torch.zeros(56, 64)])
    for rank, parameters in enumerate(ranks(llama, 4)):
        assert torch.equal(parameters["lm_head.weight"], padded.chunk(4)[rank])


def test_a_rank_beyond_the_vocabulary_holds_only_zeros(llama: dict[str, Any]) -> None:
    last = ranks(llama | {"vocab_size": 20}, 4)[3]
    assert torch.equal(last["model.embed_tokens.weight"], torch.zeros(16, 64))


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_experts_are_stacked_gate_above_up(v3: dict[str, Any], degree: int) -> None:
    full, prefix = full_tensors(v3), "model.layers.1.mlp.experts."
    for rank, parameters in enumerate(ranks(v3, degree)):
        for expert in range(4):
            gate, up, down = (
                full[f"{prefix}{expert}.{part}_proj.weight"] for part in ("gate", "up", "down")
            )
            fused = torch.cat([gate.chunk(degree)[rank], up.chunk(degree)[rank]])
            assert torch.equal(parameters[prefix + "w13_weight"][expert], fused)
            cut = down.chunk(degree, dim=1)[rank]
            assert torch.equal(parameters[prefix + "w2_weight"][expert], cut)


def test_latent_projections_are_fused_whole_and_their_heads_cut(v3: dict[str, Any]) -> None:
    full, prefix = full_tensors(v3), "model.layers.0.self_attn."
    whole = torch.cat(
        [full[prefix + "q_a_proj.weight"], full[prefix + "kv_a_proj_with_mqa.weight"]]
    )
    for rank, parameters in enumerate(ranks(v3, 2)):
        assert torch.equal(parameters[prefix + "fused_qkv_a_proj.weight"], whole)
        for name in ("q_b_proj.weight", "kv_b_proj.weight"):
            assert torch.equal(parameters[prefix + name], full[prefix + name].chunk(2)[rank])


def test_without_query_compression_nothing_is_fused(v3: dict[str, Any]) -> None:
    parameters = ranks(v3 | {"q_lora_rank": None}, 2)[0]
    assert "model.layers.0.self_attn.q_proj.weight" in parameters
    assert "model.layers.0.self_attn.kv_a_proj_with_mqa.weight" in parameters
    assert not any("fused_qkv_a_proj" in name for name in parameters)


def test_the_indexer_is_whole_on_every_rank(v32: dict[str, Any]) -> None:
    full, prefix = full_tensors(v32), "model.layers.0.self_attn.indexer."
    fused = torch.cat([full[prefix + "wk.weight"], full[prefix + "weights_proj.weight"]])
    for parameters in ranks(v32, 2):
        assert torch.equal(parameters[prefix + "wk_weights_proj.weight"], fused)


@pytest.mark.parametrize("family", ["llama", "moe", "v3", "v32"])
def test_every_tensor_is_used_by_some_rank(family: str, request: pytest.FixtureRequest) -> None:
    config = request.getfixturevalue(family)
    used = {
        part.tensor
        for rank in range(2)
        for p in fused_parameters(config, 2, rank)
        for part in p.parts
    }
    assert used - {None} == set(expected_tensors(config))


def test_prediction_layers_can_be_left_out(v3: dict[str, Any]) -> None:
    names = [parameter.name for parameter in fused_parameters(v3, 2, 0, mtp=False)]
    assert not any(name.startswith("model.layers.3.") for name in names)


def test_a_degree_that_does_not_divide_the_heads_names_those_that_do(llama: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"size 3 .*num_attention_heads \(8\).* 1, 2, 4, 8$"):
        check_degree(llama, 3)


def test_a_degree_that_does_not_divide_the_experts_is_refused(v3: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"moe_intermediate_size \(30\)"):
        check_degree(v3 | {"moe_intermediate_size": 30}, 4)


@pytest.mark.skipif(not FACTS.is_dir(), reason="the model facts are not beside this checkout")
def test_degrees_of_every_real_model_are_the_known_ones() -> None:
    for path in FACTS.glob("*.json"):
        config = json.loads(path.read_bytes())
        if config["architectures"][0] in ARCHITECTURES:
            facts = config["_facts"]["tensor_parallel"]
            known = {*facts["degrees"], *facts.get("degrees_with_kv_heads_repeated", [])}
            assert {n for n in degrees(config) if n in known} == known, path.stem
