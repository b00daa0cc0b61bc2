"""Streams that another replica repeats: the client sees each part of an answer once."""

import itertools
from typing import Any

import pytest

from tests.gateway.fake_engine import Trouble
from tests.gateway.fleet import CHAT, COMPLETION, Fleet, Told, fleet
from tests.gateway.test_resume import BREAKS, USAGE, body_for, same, undisturbed

TOOLS: dict[str, Any] = {"tools": [{"type": "function", "function": {"name": "tool0"}}]}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}
REPEATED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"response_format": {"type": "json_object"}}),
    (COMPLETION, {"structured_outputs": {"regex": "a"}}),
    (CHAT, TOOLS),
    (COMPLETION, {"echo": True}),
    (CHAT, {"frequency_penalty": 0.5}),
    (CHAT, {"thinking_token_budget": 5}),
    (CHAT, {"messages": [IMAGE]}),
    (CHAT, {**TOOLS, "logprobs": True, "top_logprobs": 1}),
    (COMPLETION, {"echo": True, "logprobs": 1}),
    (CHAT, {**TOOLS, "return_token_ids": True}),
]


def alike(told: Told, whole: Told) -> None:
    """As `same`, with what parsers make; the ids of tool calls are made up anew each time."""
    same(told, whole)
    assert told.reasoning == whole.reasoning
    for number, call in whole.tool_calls.items():
        of_told = told.tool_calls[number]
        assert len(of_told.pop("id")) == len(call.pop("id")) == 1
        assert of_told == call
    assert told.tool_calls.keys() == whole.tool_calls.keys()


async def compare(door: Fleet, path: str, body: dict[str, Any], kind: str, after: int) -> None:
    whole = await undisturbed(door, path, body)
    door.engines[0].troubles = [Trouble(kind, after)]
    alike(await door.ask(path, body), whole)
    assert sum(len(engine.requests) for engine in door.engines) == 2
    for engine in door.engines:
        engine.troubles.clear()
        engine.requests.clear()


@pytest.mark.parametrize(("path", "more"), REPEATED, ids=[str(i) for i in range(len(REPEATED))])
@pytest.mark.parametrize("after", [1, 2, 9, 20])
async def test_what_cannot_be_continued_from_ids_is_made_again_and_shown_once(
    path: str, more: dict[str, Any], after: int
) -> None:
    async with fleet() as door:
        await compare(door, path, body_for(path, min_tokens=39, **USAGE, **more), "reset", after)


@pytest.mark.parametrize("kind", [kind for kind in BREAKS if kind != "half a character"])
async def test_tool_calls_survive_every_way_in_which_a_stream_breaks(kind: str) -> None:
    async with fleet() as door:
        for after in (1, 8, 25):
            await compare(door, CHAT, body_for(CHAT, min_tokens=39, **TOOLS), kind, after)


@pytest.mark.parametrize("more", [{}, {"return_token_ids": True}, TOOLS], ids=str)
async def test_reasoning_that_the_engine_separates_goes_on_and_content_after_it(
    more: dict[str, Any],
) -> None:
    async with fleet() as door:
        for engine in door.engines:
            engine.reasoning = 8
        for after in (2, 6, 9, 20):
            body = body_for(CHAT, min_tokens=39, **USAGE, **more)
            await compare(door, CHAT, body, "reset", after)


async def test_token_ids_of_reasoning_are_not_shown_to_a_client_that_did_not_ask() -> None:
    async with fleet() as door:
        for engine in door.engines:
            engine.reasoning = 8
        door.engines[0].troubles = [Trouble("reset", 5)]
        told = await door.ask(CHAT, body_for(CHAT, min_tokens=39))
        assert told.done
        assert told.ids == []
        assert not any(event.get("prompt_token_ids") for event in told.events)


async def test_a_repeated_stream_survives_several_losses_also_while_it_is_repeated() -> None:
    async with fleet() as door:
        body = body_for(CHAT, min_tokens=39, **TOOLS)
        whole = await undisturbed(door, CHAT, body)
        for engine, after in itertools.product(door.engines, (9, 4, 20)):
            engine.troubles.append(Trouble("error event", after))
        alike(await door.ask(CHAT, body), whole)


async def test_another_replica_may_cut_the_answer_into_other_events() -> None:
    async with fleet() as door:
        door.engines[1].tokens_an_event = 3
        body = body_for(CHAT, min_tokens=39, response_format={"type": "json_object"})
        for after in (2, 3, 4, 5):
            await compare(door, CHAT, body, "error event", after)


async def test_an_answer_that_comes_out_differently_is_ended_with_an_error() -> None:
    async with fleet() as door:
        door.engines[1].salt = "another"
        door.engines[0].troubles = [Trouble("error event", 9)]
        told = await door.ask(CHAT, body_for(CHAT, min_tokens=39, **TOOLS))
        assert "made another answer" in told.error["message"]
        assert told.finish_reasons == ["error"]
        assert not told.done
        assert not told.complete


async def test_an_answer_that_ends_before_what_the_client_has_is_ended_with_an_error() -> None:
    async with fleet() as door:
        body = body_for(COMPLETION, echo=True, min_tokens=39)
        door.engines[0].troubles = [Trouble("error event", 9)]
        door.engines[1].longest = 5
        told = await door.ask(COMPLETION, body)
        assert "made another answer" in told.error["message"]


async def test_a_repeated_stream_longer_than_what_is_remembered_is_ended() -> None:
    async with fleet(resume_memory_mib=0.00001) as door:
        door.engines[0].troubles = [Trouble("error event", 30)]
        told = await door.ask(CHAT, body_for(CHAT, min_tokens=39, **TOOLS))
        assert "longer than what is remembered" in told.error["message"]


async def test_a_loss_after_the_last_event_only_adds_the_end_of_a_repeated_stream() -> None:
    async with fleet() as door:
        door.engines[0].gap_s = 0.005  # for all that was written to be read
        door.engines[0].troubles = [Trouble("no done", 1 << 20)]
        told = await door.ask(CHAT, body_for(CHAT, **TOOLS, **USAGE))
        assert told.done
        assert len(told.finish_reasons) == 1
        assert door.engines[1].requests == []


async def test_usage_that_was_lost_is_told_after_a_repeated_stream() -> None:
    async with fleet() as door:
        body = body_for(CHAT, min_tokens=39, **TOOLS, **USAGE)
        await compare(door, CHAT, body, "error event", 41)


async def test_an_event_that_the_gateway_does_not_know_is_passed_on() -> None:
    async with fleet() as door:
        door.engines[0].extra_delta = {"annotations": [{"a": 1}]}
        told = await door.ask(CHAT, body_for(CHAT, min_tokens=39, **TOOLS))
        assert told.done
        assert told.choices[1]["delta"]["annotations"] == [{"a": 1}]
        door.engines[0].troubles = [Trouble("error event", 9)]
        told = await door.ask(CHAT, body_for(CHAT, min_tokens=39, **TOOLS))
        assert "form" in told.error["message"]


async def test_with_our_sampler_sampled_tool_calls_are_repeated_with_one_seed() -> None:
    async with fleet(resume_sampled=True) as door:
        body = body_for(CHAT, min_tokens=39, **TOOLS) | {"temperature": 0.7}
        door.engines[0].troubles = [Trouble("error event", 9)]
        told = await door.ask(CHAT, body)
        assert told.done
        seeds = [engine.requests[0][1]["vllm_xargs"] for engine in door.engines]
        assert seeds[0] == seeds[1]
        assert seeds[0]["tunan_seed"] > 0
