"""Why tokens in bfloat16 are not always those of transformers: ties, told apart by rounding.

A step is the distance between neighbouring bfloat16 numbers of the likeliest logit's size, at least
a 256th of it. Logits are sums of hundreds of products, and every layer before rounds too: so each
implementation's are a few steps off those of float32. Where the two best are closer than that in
float32, either may win, and the text goes on differently from there.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.ascend.conftest import LENGTH, PROMPTS
from tests.ascend.emulated import generate

pytestmark = pytest.mark.ascend

# The stated bounds, in steps: of a logit's distance from float32's, and of what is a tie then.
FAR = 2.0
TIE = 2 * FAR


@dataclass(frozen=True)
class Answer:
    """What follows a prompt by transformers: greedy `tokens` in bfloat16, and the logits
    [LENGTH, V] before each of them, of bfloat16 and of float32."""

    prompt: list[int]
    tokens: list[int]
    narrow: torch.Tensor
    exact: torch.Tensor

    def step(self, at: int) -> float:
        """The distance of bfloat16 numbers at the likeliest logit of token `at`."""
        largest = float(self.exact[at].max().abs())
        return 2.0 ** (math.floor(math.log2(largest)) - 7)

    def gap(self, at: int, other: int) -> float:
        """How much likelier in float32 the likeliest token is than another, in steps."""
        return float(self.exact[at].max() - self.exact[at, other]) / self.step(at)


def answers(model: Path) -> list[Answer]:
    narrow, exact = (
        AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval()
        for dtype in (torch.bfloat16, torch.float32)
    )
    return [_answer(narrow, exact, prompt) for prompt in PROMPTS]


@torch.no_grad()
def _answer(narrow: Any, exact: Any, prompt: list[int]) -> Answer:
    ids = torch.tensor([prompt])
    for _ in range(LENGTH):
        ids = torch.cat((ids, narrow(ids).logits[:, -1:].argmax(-1)), -1)
    before = slice(len(prompt) - 1, -1)
    logits = [model(ids).logits[0, before].float() for model in (narrow, exact)]
    return Answer(prompt, ids[0, len(prompt) :].tolist(), *logits)


def requests(found: list[Answer]) -> list[dict[str, Any]]:
    """Each prompt on its own, then each with every beginning of transformers' answer."""
    whole = [
        {"prompt": one.prompt, "temperature": 0, "max_tokens": LENGTH, "ignore_eos": True}
        for one in found
    ]
    step = {"temperature": 0, "max_tokens": 1, "ignore_eos": True, "logprobs": 5}
    return whole + [
        {"prompt": one.prompt + one.tokens[:at], **step} for one in found for at in range(LENGTH)
    ]


@pytest.mark.parametrize("family", ["llama", pytest.param("qwen2", marks=pytest.mark.long)])
def test_tokens_part_only_at_a_tie(family: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(family)
    found = answers(model)
    outcome = generate(model, requests(found), engine={"dtype": "bfloat16"}).result
    for one, answer in zip(found, outcome, strict=False):
        made = answer["tokens"][0]
        parted = next((at for at in range(LENGTH) if made[at] != one.tokens[at]), None)
        if parted is not None:
            assert one.gap(parted, made[parted]) < TIE
            assert one.gap(parted, one.tokens[parted]) < TIE
    steps = iter(outcome[len(found) :])
    for one in found:
        for at in range(LENGTH):
            answer = next(steps)
            assert one.gap(at, answer["tokens"][0][0]) < TIE
            assert _error(one, at, answer["logprobs"]) < FAR


def test_transformers_itself_is_as_far_from_float32(llama: Path, qwen2: Path) -> None:
    for model in (llama, qwen2):
        for one in answers(model):
            errors = [_own_error(one, at) for at in range(LENGTH)]
            assert 0.5 < max(errors) < FAR


def test_the_prompt_that_parts_is_a_tie_in_float32(llama: Path, qwen2: Path) -> None:
    """The second prompt's fourth token of Llama, and its sixth of Qwen2."""
    for model, at in ((llama, 3), (qwen2, 5)):
        one = answers(model)[1]
        best, second = one.exact[at].topk(2).values.tolist()
        assert (best - second) / one.step(at) < 0.5


def _error(one: Answer, at: int, logprobs: dict[str, float]) -> float:
    """The engine's largest distance from float32 among its likeliest tokens, in steps.

    Of the differences between them: what all logits have in common chooses no token.
    """
    exact = one.exact[at].log_softmax(-1)
    errors = [value - float(exact[int(token)]) for token, value in logprobs.items()]
    return (max(errors) - min(errors)) / 2 / one.step(at)


def _own_error(one: Answer, at: int) -> float:
    likeliest = one.narrow[at].topk(5).indices.tolist()
    narrow = one.narrow[at].log_softmax(-1)
    return _error(one, at, {str(token): float(narrow[token]) for token in likeliest})
