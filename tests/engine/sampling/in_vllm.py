"""What our plugins do inside vLLM's sampler. Runs in a vLLM process, of either version."""

import random
from typing import Any

import torch

from tests.engine.sampling.batch import (
    Request,
    penalised_logits,
    plugin,
    processors,
    sample,
    tokens,
)
from tests.engine.sampling.statistics import fit, independence
from tunan.engine import compat
from tunan.engine.sampling.continued import ContinuedOutput
from tunan.engine.sampling.noise import choose, draw_of, exponentials
from tunan.engine.sampling.seeded import SeededSampling

VOCABULARY = 300
DRAWS = 6_000
POSITIONS = 200
PARAMETERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 7},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.05},
    "penalties": {
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.2,
    },
    "all": {
        "temperature": 1.3,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.01,
        "frequency_penalty": 0.5,
    },
}


def report(_: None) -> dict[str, Any]:
    """Every check's outcome, by name."""
    import vllm

    checks = (
        distribution,
        vllm_distribution,
        seeds_of_one_position,
        neighbours,
        wrong_temperature,
        operator,
        places,
        cuts,
        greedy,
        unseeded,
        moves,
        logprobs,
        processed_logprobs,
        refusals,
        penalties,
        rounding,
        bad_words,
    )
    return {"version": vllm.__version__} | {check.__name__: check() for check in checks}


def _logits(rows: int = 1, scale: float = 2.0, seed: int = 0) -> torch.Tensor:
    """As a model in bfloat16 gives them."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, VOCABULARY, generator=generator) * scale
    return logits.bfloat16().float()


def _exact(options: dict[str, Any]) -> torch.Tensor:
    """The probabilities that vLLM's own sampler draws with, [VOCABULARY]."""
    request = Request.of([5, 6, 7], [5, 9, 9], **options)
    output = sample(_logits(), [request], mode="processed_logprobs", logprobs=-1)
    probabilities: torch.Tensor = output.logprobs_tensors.logprobs[0].exp()
    return probabilities


def _drawn(options: dict[str, Any]) -> list[int]:
    """One token each for 200 positions of 100 seeds: prompts, each longer by one."""
    found = []
    logits = _logits().expand(POSITIONS, -1)
    for seed in range(DRAWS // POSITIONS):
        requests = [
            Request.of([5, 6, 7] + [6] * length, [5, 9, 9], tunan_seed=seed, **options)
            for length in range(POSITIONS)
        ]
        found += tokens(logits, requests)
    return found


def distribution() -> dict[str, float]:
    """Of our draws over positions and seeds, against vLLM's probabilities."""
    return {name: fit(_drawn(options), _exact(options)) for name, options in PARAMETERS.items()}


def vllm_distribution() -> float:
    """Of vLLM's own draws, against the same."""
    options = PARAMETERS["all"]
    torch.manual_seed(3)
    request = Request.of([5, 6, 7], [5, 9, 9], **options)
    drawn = tokens(_logits().expand(DRAWS, -1), [request] * DRAWS)
    return fit(drawn, _exact(options))


def seeds_of_one_position() -> float:
    """Of our draws over neighbouring seeds at one position."""
    requests = [Request.of(tunan_seed=seed) for seed in range(DRAWS)]
    return fit(tokens(_logits().expand(DRAWS, -1), requests), _exact({}))


def neighbours() -> dict[str, float]:
    """Whether the draw of a position tells that of the next, and that of the next seed."""
    logits = torch.zeros(DRAWS, 8)
    draws = {
        name: choose(logits, [draw_of(seed + i * step, i * (1 - step)) for i in range(DRAWS)])
        for name, seed, step in (("positions", 1, 0), ("seeds", 0, 1))
    }
    return {
        name: independence(found[:-1].tolist(), found[1:].tolist(), 8)
        for name, found in draws.items()
    }


def wrong_temperature() -> float:
    """That the test finds a difference: of draws at 0.9 against probabilities at 1."""
    return fit(_drawn({"temperature": 0.9}), _exact({"temperature": 1.0}))


def operator() -> dict[str, Any]:
    """How many of 2000 draws vLLM's operator and our own arithmetic differ in."""
    own = compat.gumbel_argmax()
    if own is None:
        return {"there": False}
    logits = _logits(2000)
    draws = [draw_of(-5, position) for position in range(2000)]
    ours = (logits - exponentials(draws, VOCABULARY).log()).argmax(dim=-1)
    return {"there": True, "differ": int((own(logits, torch.tensor(draws)) != ours).sum())}


def places() -> bool:
    """Whether a request draws the same alone, and in any place of a larger batch."""
    logits = _logits(9)
    requests = [Request.of([1] * (i + 1), tunan_seed=i % 4, top_p=0.9) for i in range(9)]
    alone = [tokens(logits[i : i + 1], requests[i : i + 1])[0] for i in range(9)]
    order = random.Random(0).sample(range(9), 9)
    mixed = tokens(logits[order], [requests[i] for i in order])
    return alone == tokens(logits, requests) and mixed == [alone[i] for i in order]


def cuts() -> bool:
    """Whether a token does not depend on where the prompt ends and the output begins."""
    ids, logits = list(range(10, 30)), _logits()
    drawn = {
        tokens(logits, [Request.of(ids[:cut], ids[cut:], tunan_seed=99)])[0] for cut in range(1, 20)
    }
    others = {tokens(logits, [Request.of(ids[:cut], tunan_seed=99)])[0] for cut in range(1, 20)}
    return len(drawn) == 1 and len(others) > 1


def greedy() -> bool:
    """Whether a request with temperature 0 takes the best token, seed or not."""
    logits = _logits(4)
    requests = [
        Request.of(temperature=0.0, tunan_seed=1),
        Request.of(tunan_seed=1),
        Request.of(temperature=0.0),
        Request.of(temperature=0.0, tunan_seed=2),
    ]
    drawn, best = tokens(logits, requests), logits.argmax(dim=-1).tolist()
    return all(drawn[i] == best[i] for i in (0, 2, 3))


def unseeded() -> float:
    """Of vLLM's draws for requests without our seed, between ones that have it."""
    torch.manual_seed(5)
    requests = [Request.of(tunan_seed=5) if i % 2 else Request.of() for i in range(DRAWS)]
    drawn = tokens(_logits().expand(DRAWS, -1), requests)
    return fit(drawn[::2], _exact({}))


def moves() -> bool:
    """Whether a plugin follows requests that leave, move and swap places."""
    from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality

    one_way, swap = MoveDirectionality.UNIDIRECTIONAL, MoveDirectionality.SWAP
    logits = _logits(4)
    requests = [Request.of([1] * (i + 1), tunan_seed=i) for i in range(4)]
    expected = [tokens(logits[i : i + 1], requests[i : i + 1])[0] for i in range(4)]
    seeded = next(p for p in processors(requests).argmax_invariant if isinstance(p, SeededSampling))
    seeded.update_state(BatchUpdate(3, removed=[1], added=[], moved=[(3, 1, one_way)]))
    seeded.update_state(BatchUpdate(3, removed=[], added=[], moved=[(0, 2, swap)]))
    seeded.update_state(None)
    drawn = seeded.apply(logits[[2, 3, 0]]).argmax(dim=-1).tolist()
    return drawn == [expected[2], expected[3], expected[0]]


def logprobs() -> bool:
    """Whether the returned logprobs are those of the model, and the drawn token among them."""
    logits = _logits(2)
    output = sample(logits, [Request.of(tunan_seed=1), Request.of(tunan_seed=2)], logprobs=3)
    found = output.logprobs_tensors
    exact = logits.log_softmax(dim=-1).gather(1, found.logprob_token_ids.long())
    own = found.logprob_token_ids[:, 0] == output.sampled_token_ids[:, 0]
    return bool(torch.equal(found.logprobs, exact) and own.all())


def processed_logprobs() -> bool:
    """Whether, where vLLM returns what it drew from, the plugin keeps out of it."""
    logits = _logits(2)
    requests = [Request.of(tunan_seed=1, top_k=9), Request.of(tunan_seed=2, top_k=9)]
    output = sample(logits, requests, mode="processed_logprobs", logprobs=9)
    return bool(torch.isfinite(output.logprobs_tensors.logprobs).all())


def refusals() -> list[str]:
    """What a client is told of parameters that cannot be meant."""
    found = []
    for kind, options in (
        (SeededSampling, {"tunan_seed": "7"}),
        (SeededSampling, {"tunan_seed": 1 << 63}),
        (SeededSampling, {"tunan_seed": 7, "n": 2}),
        (ContinuedOutput, {"tunan_prompt_tokens": -1}),
        (ContinuedOutput, {"tunan_prompt_tokens": 1.5}),
    ):
        request = Request.of(**options)
        try:
            plugin(kind, 1).validate_params(request.params)
        except ValueError as error:
            found.append(str(error))
    return found


def _answer(length: int, before: list[int], count: int, **options: Any) -> list[int]:
    """`count` tokens after `before`, of which the first `length` are the prompt.

    The model behind it gives logits that depend on the last id.
    """
    table = _logits(VOCABULARY, scale=1.0, seed=8)
    table[:, 12:] -= 8.0  # few enough to choose from that the answer comes back to them
    request = Request.of(before[:length], before[length:], **options)
    for _ in range(count):
        last = (request.prompt + request.output)[-1]
        request.output += tokens(table[last : last + 1], [request])
    found: list[int] = request.output[len(before) - length :]
    return found


def penalties() -> dict[str, list[int]]:
    """At how many of 10 cuts the answer goes on otherwise, greedy and sampled."""
    kinds: dict[str, dict[str, Any]] = {
        "frequency": {"frequency_penalty": 0.7},
        "presence": {"presence_penalty": 1.5},
        "negative": {"frequency_penalty": -0.3, "presence_penalty": 0.2},
        "repetition": {"repetition_penalty": 1.3},
        "all": {"repetition_penalty": 1.9, "frequency_penalty": 0.6, "presence_penalty": 1.1},
        "below 1": {"repetition_penalty": 0.6, "frequency_penalty": 0.6},
    }
    return {
        name: [_changed(options | {"temperature": 0.0}), _changed(options | {"tunan_seed": 3})]
        for name, options in kinds.items()
    } | {"unaware": [_changed(kinds["all"] | {"temperature": 0.0}, aware=False)]}


def _changed(options: dict[str, Any], *, aware: bool = True) -> int:
    prompt = [4, 8, 15, 16, 23, 42]
    whole = _answer(len(prompt), prompt, 31, **options)
    changed = 0
    for cut in range(1, 31, 3):
        extra = {"tunan_prompt_tokens": len(prompt)} if aware else {}
        before = prompt + whole[:cut]
        rest = _answer(len(before), before, 31 - cut, **options, **extra)
        changed += rest != whole[cut:]
    return changed


def rounding() -> dict[str, float]:
    """The largest difference a cut makes in penalised logits, by repetition penalty."""
    before, after = [7, 7, 9, 30, 31], [7, 9, 9, 50]
    found = {}
    for factor in (1.0, 1.1, 1.9, 0.6):
        options = {"frequency_penalty": 0.37, "presence_penalty": 0.9}
        whole = Request.of([1, 2], before + after, repetition_penalty=factor, **options)
        rest = Request.of(
            [1, 2, *before], after, repetition_penalty=factor, tunan_prompt_tokens=2, **options
        )
        worst = 0.0
        for seed in range(50):
            logits = _logits(seed=seed)
            logits[0, 100:120] = -torch.inf
            difference = (
                penalised_logits(logits, whole) - penalised_logits(logits, rest)
            ).nan_to_num(0.0)
            worst = max(worst, float(difference.abs().max()))
        found[str(factor)] = worst
    return found


def bad_words() -> list[int]:
    """The tokens a continuation takes where a bad word began before the cut, aware and not."""
    logits = torch.zeros(1, VOCABULARY)
    logits[0, 12], logits[0, 13] = 2.0, 1.0
    chosen = []
    unaware: dict[str, Any] = {}
    for extra in ({"tunan_prompt_tokens": 3}, unaware):
        request = Request.of([1, 2, 3, 11], temperature=0.0, **extra)
        request.params._bad_words_token_ids = [[11, 12]]
        chosen += tokens(logits, [request])
    return chosen
