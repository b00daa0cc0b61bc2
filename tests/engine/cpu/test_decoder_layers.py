"""Decoder layers in one call or two each, on modules that look as vLLM's do; no engine."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.kernels.test_layer import HEADS, HIDDEN, INTERMEDIATE, KEY_HEADS, SIZE, normal, packed
from tunan.engine.cpu.decoder import Batch, DecoderLayers
from tunan.engine.cpu.packed_file import PackedWeights
from tunan.engine.cpu.packed_linear import Form, attach
from tunan.kernels.kv_cache import PagedKVCache

LAYERS, TOKENS = 3, 5
BF16 = torch.bfloat16


class FakeLinear(torch.nn.Module):
    """What vLLM's linear layers carry of ours."""

    def __init__(self, outputs: int, inputs: int, seed: int, rank: int = 0) -> None:
        super().__init__()
        self.tp_rank = rank
        weights = PackedWeights(packed(outputs, inputs, seed).data, None)
        bias = normal(outputs, seed=seed + 50)
        attach(self, weights, Form(outputs, inputs, 8, 0), bias)


def fake_layer(seed: int, rank: int) -> Any:
    impl = SimpleNamespace(window=0, cache=lambda tensor: PagedKVCache(tensor, SIZE))
    attention = SimpleNamespace(
        qkv_proj=FakeLinear((HEADS + 2 * KEY_HEADS) * SIZE, HIDDEN, seed),
        o_proj=FakeLinear(HIDDEN, HEADS * SIZE, seed + 1, rank),
        rotary_emb=SimpleNamespace(cos_sin_cache=normal(50, SIZE, seed=99), is_neox_style=True),
        num_heads=HEADS,
        num_kv_heads=KEY_HEADS,
        head_dim=SIZE,
        scaling=SIZE**-0.5,
        attn=SimpleNamespace(layer_name=f"layers.{seed}", impl=impl, kv_cache=empty_cache()),
    )
    norms = [
        SimpleNamespace(weight=normal(HIDDEN, seed=seed + n).to(BF16), variance_epsilon=1e-5)
        for n in (2, 3)
    ]
    return SimpleNamespace(
        self_attn=attention,
        mlp=SimpleNamespace(
            gate_up_proj=FakeLinear(2 * INTERMEDIATE, HIDDEN, seed + 4),
            down_proj=FakeLinear(HIDDEN, INTERMEDIATE, seed + 5),
        ),
        input_layernorm=norms[0],
        post_attention_layernorm=norms[1],
    )


def empty_cache() -> torch.Tensor:
    return torch.zeros(2, KEY_HEADS, 32, 2 * SIZE, dtype=BF16)


def fake_model(rank: int = 0) -> Any:
    layers = [fake_layer(10 * n, rank) for n in range(LAYERS)]
    return SimpleNamespace(model=SimpleNamespace(layers=layers))


def prompt() -> tuple[torch.Tensor, Batch]:
    tokens = torch.arange(TOKENS)
    numbers = [torch.tensor(x, dtype=torch.int32) for x in ([0, TOKENS], [TOKENS], [[0]])]
    return normal(TOKENS, HIDDEN, seed=1).to(BF16), Batch(tokens, tokens, *numbers)


@pytest.mark.parametrize("moved", range(LAYERS))
def test_a_cache_that_moved_is_noticed_whichever_layer_it_is_of(moved: int) -> None:
    model = fake_model()
    decoder = DecoderLayers(model, BF16)
    before = decoder(*prompt())
    attentions = [layer.self_attn.attn for layer in model.model.layers]
    left, attentions[moved].kv_cache = attentions[moved].kv_cache, empty_cache()
    written = left.clone()
    left.fill_(torch.nan)
    after = decoder(*prompt())
    assert torch.equal(attentions[moved].kv_cache, written)
    assert left.isnan().all()
    assert torch.equal(after[0], before[0])


def test_a_cache_of_another_shape_at_the_same_place_is_noticed() -> None:
    model = fake_model()
    decoder = DecoderLayers(model, BF16)
    attentions = [layer.self_attn.attn for layer in model.model.layers]
    wholes = [torch.zeros(4, KEY_HEADS, 32, 2 * SIZE, dtype=BF16) for _ in attentions]
    for attention, whole in zip(attentions, wholes, strict=True):
        attention.kv_cache = whole[:2]
    decoder(*prompt())
    for attention, whole in zip(attentions, wholes, strict=True):
        attention.kv_cache = whole
    hidden, batch = prompt()
    decoder(hidden, replace(batch, slots=batch.slots + 3 * 32, block_table=batch.block_table + 3))
    assert all(torch.equal(whole[3], whole[0]) for whole in wholes)


def test_a_rank_among_several_adds_up_twice_a_layer() -> None:
    expected = DecoderLayers(fake_model(), BF16)(*prompt())
    given: list[torch.Tensor] = []

    def add_up(part: torch.Tensor) -> torch.Tensor:
        given.append(part)
        return part.clone()  # as a collective may: what was given need not be what is returned

    result = DecoderLayers(fake_model(), BF16, add_up)(*prompt())
    assert torch.equal(result[0], expected[0])
    assert torch.equal(result[1], expected[1])
    assert len(given) == 2 * LAYERS


def test_one_rank_alone_adds_the_bias_of_the_output() -> None:
    after_attention: list[torch.Tensor] = []
    for rank in range(2):
        parts: list[torch.Tensor] = []

        def keep(part: torch.Tensor, parts: list[torch.Tensor] = parts) -> torch.Tensor:
            parts.append(part.clone())
            return part

        DecoderLayers(fake_model(rank), BF16, keep)(*prompt())
        after_attention.append(parts[0].float())
    bias = normal(HIDDEN, seed=51).expand(TOKENS, -1)
    difference = after_attention[0] - after_attention[1]
    torch.testing.assert_close(difference, bias, atol=0.05, rtol=0.05)
