"""Mixtures of experts against exact integers and against their single operators, bit for bit."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kernels.experts import (
    GROUPS,
    TYPES,
    Weights,
    bits,
    mixture,
    one_by_one,
    pack,
    routes,
    tokens,
)
from tests.kernels.isas import in_one_isa
from tunan import kernels
from tunan.errors import CheckFailedError, UsageError
from tunan.kernels.moe import read_experts, run_experts

pytestmark = pytest.mark.usefixtures("isa")

by_form = pytest.mark.parametrize("form", GROUPS)
by_dtype = pytest.mark.parametrize("dtype", TYPES, ids=str)
in_every_isa = settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@by_form
@by_dtype
@pytest.mark.parametrize("count", [1, 3, 32, 150])
def test_one_call_has_the_bits_of_its_operators(form: str, dtype: torch.dtype, count: int) -> None:
    gate_up, down = mixture(form, 5, 200, 130)
    given_routes = routes(count, 3, 5)
    x = tokens(count, 200, dtype)
    expected = one_by_one(x, *given_routes, gate_up.packed, down.packed)
    actual = run_experts(x, *given_routes, gate_up.packed, down.packed)
    assert actual.dtype == dtype
    assert torch.equal(bits(actual), bits(expected))


@by_form
@in_every_isa
@given(
    count=st.integers(1, 40),
    experts=st.integers(1, 9),
    hidden=st.integers(1, 150),
    inner=st.integers(1, 150),
    data=st.data(),
)
def test_every_tail_and_every_routing(
    form: str, count: int, experts: int, hidden: int, inner: int, data: st.DataObject
) -> None:
    top_k = data.draw(st.integers(1, experts))
    gate_up, down = mixture(form, experts, hidden, inner)
    chosen, factors = routes(count, top_k, experts, seed=count)
    if data.draw(st.booleans()):
        chosen[::2, 0] = -1
    x = tokens(count, hidden, torch.float32)
    expected = one_by_one(x, chosen, factors, gate_up.packed, down.packed)
    assert torch.equal(run_experts(x, chosen, factors, gate_up.packed, down.packed), expected)


def identity(experts: int, size: int, group: int, gate: float) -> Weights:
    """Gates of the constant `gate`, for inputs whose first element is 1, and values as they are."""
    values = torch.zeros(experts, 2 * size, size, dtype=torch.int8)
    values[:, :size, 0] = 1
    values[:, size:] = torch.eye(size, dtype=torch.int8)
    groups = -(-size // group) if group else 1
    scales = torch.ones(experts, 2 * size, groups)
    scales[:, :size] = gate
    return pack(values, scales, group)


@by_form
def test_sums_are_those_of_exact_integers(form: str, threads: int) -> None:
    """Gates so large that SwiGLU multiplies by a power of two, and largest values of 127, so that
    quantising changes nothing and float32 holds every result."""
    group, size, experts, top_k = GROUPS[form], 70, 6, 3
    random = torch.Generator().manual_seed(5)
    limit = 8 if group else 128
    values = torch.randint(-limit, limit, (experts, size, size), generator=random).to(torch.int8)
    down = pack(values, torch.ones(experts, size, -(-size // group) if group else 1), group)
    x = torch.randint(-127, 128, (45, size), generator=random)
    x[:, 0], x[:, 1] = 1, 127
    chosen, _ = routes(len(x), top_k, experts)
    factors = torch.randint(1, 9, chosen.shape, generator=random)
    expected = torch.zeros(len(x), size, dtype=torch.int64)
    for token, listed in enumerate(chosen):
        for expert, factor in zip(listed.tolist(), factors[token], strict=True):
            expected[token] += factor * 64 * (values[expert].long() @ x[token])
    gate_up = identity(experts, size, group, 64.0)
    actual = run_experts(x.float(), chosen, factors.float(), gate_up.packed, down.packed)
    assert torch.equal(actual, expected.float())
    assert threads


@by_form
def test_the_result_is_what_float64_gives(form: str) -> None:
    gate_up, down = mixture(form, 4, 256, 128)
    chosen, factors = routes(20, 2, 4)
    x = tokens(20, 256, torch.float32)
    expected = torch.zeros(20, 256, dtype=torch.float64)
    for token in range(20):
        for expert, factor in zip(chosen[token].tolist(), factors[token], strict=True):
            gate, up = (gate_up.dense[expert] @ x[token].double()).chunk(2)
            inner = torch.nn.functional.silu(gate) * up
            expected[token] += factor * (down.dense[expert] @ inner)
    error = run_experts(x, chosen, factors, gate_up.packed, down.packed).double() - expected
    assert float(error.norm() / expected.norm()) < 0.02


def test_a_token_gives_the_same_bits_alone_and_however_its_experts_are_listed(threads: int) -> None:
    gate_up, down = mixture("w8", 8, 192, 96)
    chosen, factors = routes(64, 4, 8)
    x = tokens(64, 192)
    together = run_experts(x, chosen, factors, gate_up.packed, down.packed)
    for token in (0, 17, 63):
        one = slice(token, token + 1)
        listed, weighed = (t[one].flip(1).contiguous() for t in (chosen, factors))
        alone = run_experts(x[one], listed, weighed, gate_up.packed, down.packed)
        assert torch.equal(alone, together[one])
    assert threads


@pytest.mark.parametrize("form", ["w8", "w4g32"])
def test_threads_do_not_change_the_bits(form: str, threads: int) -> None:
    gate_up, down = mixture(form, 6, 320, 160)
    given_routes = routes(100, 3, 6)
    x = tokens(100, 320)
    shared = run_experts(x, *given_routes, gate_up.packed, down.packed)
    kernels.configure_pool(kernels.PoolConfig())
    alone = run_experts(x, *given_routes, gate_up.packed, down.packed)
    assert torch.equal(bits(shared), bits(alone))
    assert threads


@by_form
@by_dtype
def test_every_instruction_set_gives_the_bits_of_the_scalar_one(
    form: str, dtype: torch.dtype
) -> None:
    def run() -> torch.Tensor:
        gate_up, down = mixture(form, 3, 180, 77)
        x = tokens(60, 180, dtype)
        return run_experts(x, *routes(60, 2, 3), gate_up.packed, down.packed)

    here = run()
    kernels.select_isa("scalar")
    assert torch.equal(bits(here), bits(run()))


def test_a_long_prompt_is_worked_on_part_by_part() -> None:
    """More tokens at experts than are held at once."""
    gate_up, down = mixture("w8", 7, 40, 24)
    given_routes = routes(3000, 4, 7)
    x = tokens(3000, 40)
    expected = one_by_one(x, *given_routes, gate_up.packed, down.packed)
    assert torch.equal(run_experts(x, *given_routes, gate_up.packed, down.packed), expected)


def test_all_tokens_at_one_expert() -> None:
    gate_up, down = mixture("w4g32", 5, 64, 64)
    chosen = torch.full((70, 1), 3, dtype=torch.int32)
    factors = torch.full((70, 1), 0.5)
    x = tokens(70, 64)
    expected = one_by_one(x, chosen, factors, gate_up.packed, down.packed)
    assert torch.equal(run_experts(x, chosen, factors, gate_up.packed, down.packed), expected)


@in_one_isa
def test_a_token_whose_experts_are_all_elsewhere_gets_nothing() -> None:
    gate_up, down = mixture("w8", 4, 64, 32)
    chosen, factors = routes(5, 2, 4)
    x = tokens(5, 64)
    before = run_experts(x, chosen, factors, gate_up.packed, down.packed)
    chosen[2] = -1
    after = run_experts(x, chosen, factors, gate_up.packed, down.packed)
    assert torch.equal(after[2], torch.zeros(64, dtype=x.dtype))
    assert torch.equal(after[[0, 1, 3, 4]], before[[0, 1, 3, 4]])


def test_a_token_that_is_not_finite_gives_nan_and_leaves_the_others() -> None:
    gate_up, down = mixture("w8", 4, 64, 32)
    given_routes = routes(9, 2, 4)
    x = tokens(9, 64)
    good = run_experts(x, *given_routes, gate_up.packed, down.packed)
    x[4, 63] = float("nan")
    result = run_experts(x, *given_routes, gate_up.packed, down.packed)
    rest = [token for token in range(9) if token != 4]
    assert bool(result[4].isnan().all())
    assert torch.equal(result[rest], good[rest])


@in_one_isa
def test_tokens_may_be_a_slice_of_a_wider_tensor() -> None:
    gate_up, down = mixture("w8", 3, 64, 32)
    given_routes = routes(6, 2, 3)
    wide = tokens(6, 100)
    whole = run_experts(wide[:, 20:84].contiguous(), *given_routes, gate_up.packed, down.packed)
    part = run_experts(wide[:, 20:84], *given_routes, gate_up.packed, down.packed)
    assert torch.equal(part, whole)


@in_one_isa
def test_no_tokens_are_no_work() -> None:
    gate_up, down = mixture("w8", 3, 64, 32)
    given_routes = torch.empty(0, 2, dtype=torch.int32), torch.empty(0, 2)
    x = torch.empty(0, 64)
    assert run_experts(x, *given_routes, gate_up.packed, down.packed).shape == (0, 64)


@in_one_isa
def test_experts_packed_earlier_are_read_from_their_bytes() -> None:
    gate_up, _ = mixture("w4g64", 3, 64, 32)
    assert read_experts(gate_up.packed.data, 3) == gate_up.packed


def _wrong_expert(call: dict[str, torch.Tensor]) -> None:
    call["experts"][1, 1] = 4


def _wrong_shape(call: dict[str, torch.Tensor]) -> None:
    call["weights"] = call["weights"][:, :1].contiguous()


def _wrong_type(call: dict[str, torch.Tensor]) -> None:
    call["experts"] = call["experts"].long()


def _wrong_pieces(call: dict[str, torch.Tensor]) -> None:
    call["weights"] = call["weights"].t().contiguous().t()


def _wrong_tokens(call: dict[str, torch.Tensor]) -> None:
    call["x"] = call["x"][:, :32].contiguous()


@in_one_isa
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_wrong_expert, "there is no expert 4, there are 4"),
        (_wrong_shape, r"experts \(5, 2\), weights \(5, 1\)"),
        (_wrong_type, "int64 for 5 tokens"),
        (_wrong_pieces, "weights are in pieces"),
        (_wrong_tokens, "gate_up is packed 64 x 64; 64 x 32 is needed"),
    ],
)
def test_what_does_not_fit_is_refused(
    change: Callable[[dict[str, torch.Tensor]], None], message: str
) -> None:
    gate_up, down = mixture("w8", 4, 64, 32)
    chosen, factors = routes(5, 2, 4)
    call = {"x": tokens(5, 64), "experts": chosen, "weights": factors}
    change(call)
    with pytest.raises(UsageError, match=message):
        run_experts(**call, gate_up=gate_up.packed, down=down.packed)


@in_one_isa
def test_different_numbers_of_experts_are_refused() -> None:
    gate_up, down = mixture("w8", 4, 64, 32)[0], mixture("w8", 3, 64, 32)[1]
    chosen, factors = routes(5, 2, 3)
    with pytest.raises(UsageError, match="4 experts have gate and up, 3 down"):
        run_experts(tokens(5, 64), chosen, factors, gate_up.packed, down.packed)


@in_one_isa
def test_an_expert_that_was_overwritten_is_refused() -> None:
    gate_up, down = mixture("w8", 4, 64, 32)
    each = down.packed.bytes_each
    down.packed.data[2 * each : 2 * each + 8] = 0
    chosen, factors = torch.tensor([[1, 2]], dtype=torch.int32), torch.ones(1, 2)
    with pytest.raises(CheckFailedError, match="these are no packed weights"):
        run_experts(tokens(1, 64), chosen, factors, gate_up.packed, down.packed)
