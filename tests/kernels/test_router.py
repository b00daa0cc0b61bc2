"""The choice of experts against PyTorch's operators, as vLLM's router for CPUs strings them."""

from dataclasses import replace

import pytest
import torch

from tests.kernels.isas import in_one_isa
from tunan.errors import UsageError
from tunan.kernels.router import Routing, route

pytestmark = [pytest.mark.usefixtures("isa"), in_one_isa]

EXPERTS = 64
GREEDY = Routing(top_k=6)
LIMITED = Routing(top_k=6, groups=8, kept_groups=3, scale=16.0)
BIASED = Routing(
    top_k=8,
    groups=8,
    kept_groups=4,
    sigmoid=True,
    renormalise=True,
    scale=2.5,
    bias=torch.randn(EXPERTS, generator=torch.Generator().manual_seed(5)) * 0.1,
)
by_routing = pytest.mark.parametrize(
    "routing", [GREEDY, LIMITED, BIASED], ids=["greedy", "limited", "biased"]
)


def logits(rows: int, experts: int = EXPERTS, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    made = torch.Generator().manual_seed(rows)
    return torch.randn(rows, experts, generator=made).to(dtype)


def expected(x: torch.Tensor, routing: Routing) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and experts as DeepSeek's papers (arXiv 2405.04434, 2412.19437) have them."""
    scores = x.float().sigmoid() if routing.sigmoid else x.float().softmax(-1)
    ranked = scores if routing.bias is None else scores + routing.bias
    groups = ranked.view(len(x), routing.groups, -1)
    best = groups.amax(-1) if routing.bias is None else groups.topk(2, -1).values.sum(-1)
    kept = best.topk(routing.kept_groups, -1, sorted=False).indices
    is_open = torch.zeros_like(best).scatter(1, kept, 1.0).bool()
    ranked = ranked.masked_fill(~is_open.repeat_interleave(groups.shape[2], 1), -torch.inf)
    chosen = ranked.topk(routing.top_k, -1, sorted=False).indices
    weights = scores.gather(1, chosen)
    if routing.renormalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * routing.scale, chosen


@by_routing
@pytest.mark.parametrize("rows", [1, 40])
def test_experts_and_weights_are_those_of_pytorchs_operators(routing: Routing, rows: int) -> None:
    x = logits(rows)
    weights, chosen = route(x, routing)
    expected_weights, expected_chosen = expected(x, routing)
    assert torch.equal(chosen.long(), expected_chosen)
    torch.testing.assert_close(weights, expected_weights, rtol=2e-6, atol=0)


@pytest.mark.parametrize("experts", [64, 256, 1024])
@pytest.mark.parametrize("top_k", [4, 6])
def test_of_equal_logits_those_are_taken_that_pytorch_takes(experts: int, top_k: int) -> None:
    """Rounded to bfloat16 many are equal; 1024 experts are chosen by another algorithm."""
    x = (logits(200, experts) * 3).round().to(torch.bfloat16)
    routing = replace(GREEDY, top_k=top_k)
    assert torch.equal(route(x, routing)[1].long(), expected(x, routing)[1])


@by_routing
def test_a_token_alone_goes_where_it_goes_among_others(routing: Routing) -> None:
    x = logits(40, dtype=torch.bfloat16)
    weights, chosen = route(x, routing)
    for row in range(40):
        alone = route(x[row : row + 1], routing)
        assert torch.equal(alone[0][0], weights[row])
        assert torch.equal(alone[1][0], chosen[row])


def test_experts_are_called_what_they_are_called_here() -> None:
    placed = torch.full((EXPERTS,), -1, dtype=torch.int32)
    placed[10:30] = torch.arange(20, dtype=torch.int32)
    x = logits(40)
    here = route(x, replace(GREEDY, placed=placed))
    everywhere = route(x, GREEDY)
    assert torch.equal(here[1], placed[everywhere[1].long()])
    assert torch.equal(here[0], everywhere[0])


@pytest.mark.parametrize(
    "routing",
    [Routing(top_k=65), Routing(top_k=1, groups=7), Routing(top_k=9, groups=8, kept_groups=1)],
    ids=["too many", "uneven groups", "too many of the groups"],
)
def test_a_choice_that_there_is_not_is_refused(routing: Routing) -> None:
    with pytest.raises(UsageError, match="router: "):
        route(logits(1), routing)


def test_a_bias_of_other_experts_is_refused() -> None:
    with pytest.raises(UsageError, match="bias is"):
        route(logits(1), replace(GREEDY, bias=torch.zeros(3)))
