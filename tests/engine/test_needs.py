from torch import nn

from tunan.engine.needs import needs_of


class Missing(nn.Module):
    """Stands where another pipeline stage has a layer."""


def model(present: list[bool]) -> nn.Module:
    layers = nn.ModuleList(nn.Linear(1, 1) if here else Missing() for here in present)
    whole, inner = nn.Module(), nn.Module()
    inner.layers, inner.embed_tokens, inner.norm = layers, Missing(), nn.Linear(1, 1)
    whole.model, whole.lm_head = inner, nn.Linear(1, 1)
    return whole


def test_only_layers_that_the_process_built_are_needed() -> None:
    needed = needs_of(model([False, True, True]), (Missing,), None)
    assert not needed("model.layers.0.mlp.up_proj.weight")
    assert needed("model.layers.1.mlp.up_proj.weight")


def test_a_prediction_layer_beyond_the_model_is_not_needed() -> None:
    needed = needs_of(model([True, True]), (Missing,), None)
    assert not needed("model.layers.2.eh_proj.weight")


def test_a_draft_model_needs_its_prediction_layer_only() -> None:
    draft = nn.Module()
    draft.model = nn.Module()
    draft.model.layers = nn.ModuleDict({"61": nn.Linear(1, 1)})
    needed = needs_of(draft, (Missing,), None)
    assert needed("model.layers.61.eh_proj.weight")
    assert not needed("model.layers.60.mlp.up_proj.weight")


def test_embedding_and_head_are_needed_where_they_are_built() -> None:
    needed = needs_of(model([True]), (Missing,), None)
    assert not needed("model.embed_tokens.weight")
    assert needed("lm_head.weight")
    assert needed("model.norm.weight")


def test_experts_of_other_ranks_are_not_needed_but_shared_ones_are() -> None:
    needed = needs_of(model([True]), (Missing,), {2, 3})
    prefix = "model.layers.0.mlp."
    assert [needed(f"{prefix}experts.{e}.up_proj.weight") for e in range(4)] == [False] * 2 + [
        True
    ] * 2
    assert needed(f"{prefix}shared_experts.up_proj.weight")
    assert needed(f"{prefix}gate.weight")


def test_a_model_without_decoder_layers_needs_everything() -> None:
    needed = needs_of(nn.Sequential(nn.Linear(1, 1)), (Missing,), None)
    assert needed("model.layers.7.anything")
