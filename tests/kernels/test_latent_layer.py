"""A decoder layer of DeepSeek's kind in one call against its operators one by one, bit for bit."""

import copy
from dataclasses import replace

import pytest
import torch

from tests.kernels import latents
from tests.kernels.isas import in_one_isa
from tests.kernels.latents import Step, layer, step
from tunan import kernels
from tunan.errors import UsageError
from tunan.kernels.kv_cache import PagedKVCache
from tunan.kernels.latent import LatentLayer, Stage, latent_layer

pytestmark = pytest.mark.usefixtures("isa")

LENGTHS = [1, 40, 7, 64, 33]
KINDS = ["dense", "v2", "v3", "routed"]
BF16 = torch.bfloat16
by_kind = pytest.mark.parametrize("kind", KINDS)


def one_by_one(weights: LatentLayer, given: Step, *, first: bool = False) -> Step:
    made = copy.deepcopy(given)
    latents.attention(weights, made, first=first)
    latents.mlp(weights, made)
    return made


def assert_same(given: Step, expected: Step) -> None:
    assert expected.hidden.isfinite().all()
    assert torch.equal(given.hidden, expected.hidden)
    assert torch.equal(given.residual, expected.residual)
    as_bytes = (one.cache.tensor.view(torch.int8) for one in (given, expected))
    assert torch.equal(*as_bytes)


@by_kind
@pytest.mark.parametrize("cache", [BF16, torch.int8], ids=str)
@pytest.mark.parametrize("form", ["w8", "w4g32"])
def test_one_call_has_the_bits_of_its_operators(kind: str, form: str, cache: torch.dtype) -> None:
    weights, given = layer(kind, form=form), step(LENGTHS, cache_dtype=cache)
    expected = one_by_one(weights, given)
    latent_layer(weights, given.cache.argument(), given.argument())
    assert_same(given, expected)


@by_kind
def test_in_float32_too(kind: str) -> None:
    weights = layer(kind, torch.float32)
    given = step(LENGTHS, torch.float32)
    expected = one_by_one(weights, given)
    latent_layer(weights, given.cache.argument(), given.argument())
    assert_same(given, expected)


@pytest.mark.parametrize("kind", ["v2", "v3"])
def test_a_projection_to_the_latents_that_is_packed(kind: str) -> None:
    weights, given = layer(kind, down="packed"), step(LENGTHS)
    expected = one_by_one(weights, given)
    latent_layer(weights, given.cache.argument(), given.argument())
    assert_same(given, expected)


def test_the_first_layers_residual_is_what_went_in() -> None:
    weights, given = layer("v3"), step(LENGTHS)
    given.residual.fill_(torch.nan)
    expected = one_by_one(weights, given, first=True)
    latent_layer(weights, given.cache.argument(), given.argument(first=True))
    assert_same(given, expected)


@by_kind
@pytest.mark.parametrize("cut", [Stage.OUTPUT, Stage.ATTEND, Stage.PROJECT])
def test_a_layer_in_two_calls_has_the_same_bits(kind: str, cut: Stage) -> None:
    """After OUTPUT as ranks do it; elsewhere what lies between the calls is the caller's."""
    weights, given = layer(kind), step(LENGTHS)
    whole = copy.deepcopy(given)
    latent_layer(weights, whole.cache.argument(), whole.argument())
    argument, tokens = given.argument(), len(LENGTHS)
    down = torch.empty(tokens, weights.query_rank + latents.LATENT + latents.ROPE, dtype=BF16)
    query = torch.empty(tokens, weights.query.outputs, dtype=BF16)
    attended = torch.empty(tokens, weights.output.inputs, dtype=BF16)
    if cut != Stage.OUTPUT:
        argument.down, argument.query = down.data_ptr(), query.data_ptr()
        argument.attended = attended.data_ptr()
    cache = given.cache.argument()
    latent_layer(weights, cache, argument, Stage.PROJECT, cut)
    latent_layer(weights, cache, argument, Stage(cut + 1))
    assert_same(given, whole)


@by_kind
def test_a_sequence_alone_has_the_bits_that_it_has_in_a_batch(kind: str, threads: int) -> None:
    weights, given = layer(kind), step(LENGTHS, cache_dtype=torch.int8)
    alone = [given.only(i) for i in range(len(LENGTHS))]
    latent_layer(weights, given.cache.argument(), given.argument())
    kernels.configure_pool(kernels.PoolConfig())
    for i, one in enumerate(alone):
        latent_layer(weights, one.cache.argument(), one.argument())
        assert torch.equal(one.hidden[0], given.hidden[i])
        assert torch.equal(one.residual[0], given.residual[i])
    assert threads


def test_no_tokens_are_no_work() -> None:
    given = step([])
    latent_layer(layer("v3"), given.cache.argument(), given.argument())


@in_one_isa
def test_a_layer_in_pieces_without_memory_between_them_is_refused() -> None:
    given = step(LENGTHS)
    before = given.hidden.clone()
    with pytest.raises(UsageError, match="needs memory that is kept"):
        latent_layer(
            layer("v3"), given.cache.argument(), given.argument(), Stage.PROJECT, Stage.ATTEND
        )
    assert torch.equal(given.hidden, before)


@in_one_isa
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output": "gate_up"}, "output is packed 400 x 160; 160 x 288 is needed"),
        ({"query": "output"}, "query is packed 160 x 288; 288 x 72 is needed"),
        ({"gate_up": "output"}, "gate_up is packed 160 x 288; 400 x 160 is needed"),
    ],
)
def test_weights_that_do_not_fit_are_refused(changes: dict[str, str], message: str) -> None:
    good, given = layer("v3"), step([1])
    wrong = {name: getattr(good, other) for name, other in changes.items()}
    before = given.hidden.clone()
    with pytest.raises(UsageError, match=message):
        latent_layer(replace(good, **wrong), given.cache.argument(), given.argument())
    assert torch.equal(given.hidden, before)


@in_one_isa
def test_a_cache_of_other_latents_is_refused() -> None:
    given = step([1])
    other = PagedKVCache(torch.zeros(2, 1, 32, 128, dtype=BF16), 128, 32)
    with pytest.raises(UsageError, match="latents of 96 and 16 for a cache of 96 and 32"):
        latent_layer(layer("v3"), other.argument(), given.argument())


@in_one_isa
def test_weights_of_another_type_are_refused() -> None:
    mixture = layer("v3").mixture
    assert mixture is not None
    wrong = replace(mixture, router=mixture.router.float())
    with pytest.raises(UsageError, match="router is"):
        replace(layer("v3"), mixture=wrong)
