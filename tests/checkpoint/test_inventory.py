"""Taking stock of a source."""

from typing import Any

import pytest

from tunan.checkpoint.architectures import expected_tensors
from tunan.checkpoint.inventory import take_stock
from tunan.errors import CheckFailedError


def test_a_complete_source_is_carried_in_the_order_of_use(llama: dict[str, Any]) -> None:
    shuffled = dict(reversed(expected_tensors(llama).items()))
    assert take_stock(llama, shuffled).names == tuple(expected_tensors(llama))


def test_missing_tensors_are_named_and_counted(llama: dict[str, Any]) -> None:
    found = expected_tensors(llama)
    del found["model.layers.1.mlp.up_proj.weight"], found["model.norm.weight"]
    with pytest.raises(CheckFailedError, match=r"layers\.1\.mlp\.up_proj\.weight is missing, 2 of"):
        take_stock(llama, found)


def test_a_tensor_of_another_shape_is_named(llama: dict[str, Any]) -> None:
    found = expected_tensors(llama) | {"model.norm.weight": (65,)}
    with pytest.raises(CheckFailedError, match=r"model\.norm\.weight has shape \[65\].*\[64\]"):
        take_stock(llama, found)


def test_unexpected_tensors_are_carried_last_and_reported(llama: dict[str, Any]) -> None:
    stock = take_stock(llama, {"extra.weight": (3,)} | expected_tensors(llama))
    assert stock.unexpected == ("extra.weight",)
    assert stock.names[-1] == "extra.weight"


def test_rotary_frequencies_are_dropped(llama: dict[str, Any]) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    stock = take_stock(llama, expected_tensors(llama) | {name: (4,)})
    assert stock.dropped == (name,)
    assert name not in stock.names


def test_a_source_without_any_prediction_layer_is_taken(v3: dict[str, Any]) -> None:
    found = {n: s for n, s in expected_tensors(v3).items() if not n.startswith("model.layers.3.")}
    stock = take_stock(v3, found)
    assert stock.mtp_absent
    assert stock.names == tuple(found)


def test_half_a_prediction_layer_is_missing_tensors(v3: dict[str, Any]) -> None:
    found = expected_tensors(v3)
    del found["model.layers.3.eh_proj.weight"]
    with pytest.raises(CheckFailedError, match=r"layers\.3\.eh_proj\.weight is missing, 1 of"):
        take_stock(v3, found)


@pytest.mark.parametrize("key", ["num_hidden_layers", "n_routed_experts"])
def test_an_impossible_count_is_refused_before_it_is_spelled_out(
    v3: dict[str, Any], key: str
) -> None:
    found = expected_tensors(v3)
    with pytest.raises(CheckFailedError, match=rf"{key} is {10**30}, but there are \d+ tensors"):
        take_stock(v3 | {key: 10**30}, found)
