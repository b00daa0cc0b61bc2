"""Streams that go on at another replica: the client sees what it would have seen without a loss."""

import asyncio
import itertools
import random
from typing import Any

import pytest

from tests.gateway.fake_engine import Trouble
from tests.gateway.fleet import CHAT, COMPLETION, Fleet, Told, fleet

MESSAGES = [{"role": "user", "content": "What is the Peng?"}]
USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}


def body_for(path: str, number: int = 0, **more: Any) -> dict[str, Any]:
    asked = f"What is the Peng? {number}"
    prompt: dict[str, Any] = {"prompt": asked}
    if path == CHAT:
        prompt = {"messages": [{"role": "user", "content": asked}]}
    return {"model": "m", **prompt, "stream": True, "temperature": 0, "max_tokens": 40, **more}


async def undisturbed(door: Fleet, path: str, body: dict[str, Any]) -> Told:
    """What a client of the engine itself gets."""
    told = await door.ask(path, body, door.engines[1].url)
    door.engines[1].requests.clear()
    return told


def same(told: Told, whole: Told) -> None:
    assert told.error is None
    assert told.text == whole.text
    assert told.ids == whole.ids
    assert told.logprobs == whole.logprobs
    assert told.finish_reasons == whole.finish_reasons
    assert told.usage == whole.usage
    assert told.done
    assert told.complete
    assert len(told.heads) == 1


BREAKS = ["reset", "half an event", "garbage", "error event", "end early", "abort"]
BREAKS += ["half a character", "misshapen"]


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@pytest.mark.parametrize("kind", BREAKS)
async def test_a_broken_stream_goes_on_at_the_next_token(path: str, kind: str) -> None:
    async with fleet() as door:
        for number, after in itertools.product(range(2), (1, 2, 20)):
            body = body_for(path, number, **USAGE)
            whole = await undisturbed(door, path, body)
            door.engines[0].troubles = [Trouble(kind, after)]
            told = await door.ask(path, body)
            same(told, whole)
            for engine in door.engines:
                engine.troubles.clear()


OPTIONS: list[dict[str, Any]] = [
    {"stop": ["END"]},
    {"stop": 'D\\n"'},
    {"stop": ["END", " wingEND"], "include_stop_str_in_output": True},
    {"return_token_ids": True},
    {"min_tokens": 30},
    {"ignored": None, "n": 1, "response_format": {"type": "text"}},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
]


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@pytest.mark.parametrize("options", OPTIONS, ids=[str(i) for i in range(len(OPTIONS))])
async def test_every_option_means_the_same_across_the_cut(
    path: str, options: dict[str, Any]
) -> None:
    async with fleet() as door:
        resumed = 0
        for number in range(4):
            body = body_for(path, number, **options)
            whole = await undisturbed(door, path, body)
            for after in range(1, len(whole.events), 4):
                door.engines[0].troubles = [Trouble("reset", after)]
                door.engines[1].troubles = []
                same(await door.ask(path, body), whole)
                resumed += not door.engines[0].troubles
        assert resumed > 8


async def test_logprobs_of_a_completion_go_on_with_their_offsets() -> None:
    async with fleet() as door:
        for after in (1, 5, 12):
            body = body_for(COMPLETION, logprobs=1)
            whole = await undisturbed(door, COMPLETION, body)
            door.engines[0].troubles = [Trouble("reset", after)]
            same(await door.ask(COMPLETION, body), whole)


@pytest.mark.parametrize("top", [0, 1])
async def test_logprobs_of_a_chat_keep_their_form(top: int) -> None:
    async with fleet() as door:
        body = body_for(CHAT, logprobs=True, top_logprobs=top)
        whole = await undisturbed(door, CHAT, body)
        door.engines[0].troubles = [Trouble("reset", 7)]
        same(await door.ask(CHAT, body), whole)
        assert whole.logprobs


async def test_several_tokens_an_event_are_taken_up_where_their_text_is_sure() -> None:
    async with fleet() as door:
        for engine in door.engines:
            engine.tokens_an_event = 3
        for number, after in itertools.product(range(5), (2, 5, 8)):
            body = body_for(CHAT, number)
            whole = await undisturbed(door, CHAT, body)
            door.engines[0].troubles = [Trouble("reset", after)]
            same(await door.ask(CHAT, body), whole)


async def test_a_stream_survives_several_losses() -> None:
    async with fleet(3, max_losses=9) as door:
        body = body_for(CHAT, 5, **USAGE, min_tokens=39)
        whole = await undisturbed(door, CHAT, body)
        for engine in door.engines:
            engine.troubles = [Trouble("reset", 4), Trouble("half an event", 3)]
        same(await door.ask(CHAT, body), whole)
        assert sum(len(engine.requests) for engine in door.engines) >= 5


async def test_a_stream_whose_connection_broke_goes_on_where_its_cache_is_but_only_once() -> None:
    async with fleet() as door:
        body = body_for(CHAT, 5, **USAGE, min_tokens=39)
        whole = await undisturbed(door, CHAT, body)
        for breaks, asked in ((1, [2, 0]), (2, [2, 1])):
            for engine in door.engines:
                engine.requests.clear()
            door.engines[0].troubles = [Trouble("reset", 4)] * breaks
            same(await door.ask(CHAT, body), whole)
            assert [len(engine.requests) for engine in door.engines] == asked


async def test_a_stream_does_not_go_back_to_a_replica_that_does_not_answer_its_probe() -> None:
    async with fleet() as door:
        body = body_for(CHAT, 5, **USAGE, min_tokens=39)
        whole = await undisturbed(door, CHAT, body)
        for engine in door.engines:
            engine.requests.clear()
        door.engines[0].troubles = [Trouble("reset", 4)]
        door.engines[0].healthy = False
        same(await door.ask(CHAT, body), whole)
        assert [len(engine.requests) for engine in door.engines] == [1, 1]


async def test_a_stream_that_every_replica_dies_of_is_ended_before_it_has_killed_them_all() -> None:
    async with fleet(3, max_losses=3) as door:
        for engine in door.engines:
            engine.troubles = [Trouble("reset", 4)] * 9
        told = await door.ask(CHAT, body_for(CHAT, 5, min_tokens=39))
        assert told.error["type"] == "engine_lost"
        assert "3 replicas died under it" in told.error["message"]
        assert sum(len(engine.requests) for engine in door.engines) == 3


async def test_a_loss_after_the_last_token_only_adds_the_end() -> None:
    async with fleet() as door:
        body = body_for(CHAT, **USAGE)
        whole = await undisturbed(door, CHAT, body)
        for after in (len(whole.events) - 1, len(whole.events)):
            kind = "reset" if after < len(whole.events) else "no done"
            for engine in door.engines:
                engine.requests.clear()
                engine.troubles.clear()
            door.engines[0].troubles = [Trouble(kind, after)]
            same(await door.ask(CHAT, body), whole)
            assert door.engines[1].requests == []


async def test_a_stream_goes_on_though_the_first_replica_asked_is_too_busy() -> None:
    async with fleet(3) as door:
        body = body_for(CHAT)
        whole = await undisturbed(door, CHAT, body)
        door.engines[0].troubles = [Trouble("reset", 5)]
        for engine in door.engines[1:]:
            engine.troubles = [Trouble("busy")]
        same(await door.ask(CHAT, body), whole)


async def test_usage_is_told_once_though_its_replica_is_lost_after_it() -> None:
    async with fleet() as door:
        body = body_for(CHAT, **USAGE)
        whole = await undisturbed(door, CHAT, body)
        door.engines[0].troubles = [Trouble("reset", 5)]
        door.engines[1].troubles = [Trouble("no done", 999)]
        told = await door.ask(CHAT, body)
        same(told, whole)
        assert [bool(event.get("usage")) for event in told.events].count(True) == 1


async def test_events_of_servers_that_end_lines_with_two_characters_are_understood() -> None:
    async with fleet() as door:
        body = body_for(CHAT, **USAGE)
        whole = await undisturbed(door, CHAT, body)
        for engine in door.engines:
            engine.event_end = b"\r\n\r\n"
        door.engines[0].troubles = [Trouble("reset", 9)]
        same(await door.ask(CHAT, body), whole)


ODD: list[dict[str, Any]] = [
    {"stop": 5},
    {"stop": [5]},
    {"max_tokens": "40"},
    {"max_tokens": 40.0},
    {"min_tokens": [1]},
    {"vllm_xargs": 5, "temperature": 1},
    {"stream_options": "x"},
    {"logprobs": "1"},
    {"seed": "7"},
]


@pytest.mark.parametrize("more", ODD, ids=[str(odd) for odd in ODD])
async def test_a_value_of_an_odd_type_is_left_to_the_engine(more: dict[str, Any]) -> None:
    async with fleet(resume_sampled=True) as door:
        body = body_for(COMPLETION, **more)
        door.engines[0].troubles = [Trouble("refuse")]
        assert (await door.ask(COMPLETION, body)).status == 400
        assert door.engines[0].requests == [(COMPLETION, body)]


async def test_nobody_is_asked_to_compress_events_that_have_to_be_read() -> None:
    async with fleet(1) as door:
        for temperature in (0, 1):  # resumable or not
            headers = {"Accept-Encoding": "gzip"}
            body = body_for(CHAT, temperature=temperature)
            async with door.client.post(door.url + CHAT, json=body, headers=headers) as answer:
                await answer.read()
        given = [headers.get("accept-encoding") for headers in door.engines[0].headers]
        assert given == [None, "gzip"]


async def test_the_end_alone_needs_no_replica() -> None:
    async with fleet(1, probe_interval_s=60) as door:
        body = body_for(CHAT, **USAGE)
        whole = await door.ask(CHAT, body)
        door.engines[0].troubles = [Trouble("stall", len(whole.events) - 1)]
        asked = asyncio.create_task(door.ask(CHAT, body))
        await asyncio.wait_for(door.engines[0].stalled.wait(), 60)
        await asyncio.sleep(0.5)  # for what it wrote to be read
        assert door.replicas[0].in_flight == 1
        door.replicas[0].lose("test")
        told = await asked
        assert (told.text, told.finish_reasons) == (whole.text, whole.finish_reasons)
        assert (told.usage, told.done, told.error) == (whole.usage, True, None)


async def test_the_continuation_asks_for_what_is_left() -> None:
    async with fleet() as door:
        body = body_for(CHAT, min_tokens=30, top_p=0.5, user="u", seed=3)
        whole = await undisturbed(door, CHAT, body | {"return_token_ids": True})
        door.engines[0].troubles = [Trouble("error event", 11)]
        await door.ask(CHAT, body)
        path, asked = door.engines[1].requests[0]
        kept = len(asked["prompt"]) - len(whole.events[0]["prompt_token_ids"])
        assert path == COMPLETION
        assert asked["prompt"] == whole.events[0]["prompt_token_ids"] + whole.ids[:kept]
        assert asked["max_tokens"] == 40 - kept
        assert asked["min_tokens"] == 30 - kept
        assert (asked["top_p"], asked["user"], asked["seed"]) == (0.5, "u", 3)
        assert "messages" not in asked


async def test_token_ids_are_not_shown_to_a_client_that_did_not_ask() -> None:
    async with fleet() as door:
        body = body_for(COMPLETION)
        whole = await undisturbed(door, COMPLETION, body)
        told = await door.ask(COMPLETION, body)
        assert [e["choices"] for e in told.events] == [e["choices"] for e in whole.events]
        assert door.engines[0].requests[0][1]["return_token_ids"] is True


async def test_other_tokens_of_another_model_are_an_error_not_an_answer() -> None:
    async with fleet() as door:
        for engine in door.engines:
            engine.tokens_an_event = 3
        door.engines[1].salt = "another"
        body = body_for(CHAT, min_tokens=39)
        door.engines[0].troubles = [Trouble("error event", 5)]
        told = await door.ask(CHAT, body)
        assert "generated other tokens" in told.error["message"]
        assert not told.done


UNSOUND: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"n": 2}, "n > 1"),
    (CHAT, {"use_beam_search": True}, "beam search"),
    (COMPLETION, {"prompt": ["a", "b"]}, "several prompts"),
    (CHAT, {"temperature": 0.7}, "sampled"),
    (CHAT, {"temperature": 0.7, "tools": [{"type": "function"}]}, "sampled tool calls"),
]


@pytest.mark.parametrize(("path", "more", "why"), UNSOUND, ids=[why for *_, why in UNSOUND])
async def test_what_cannot_be_resumed_is_repeated_while_nothing_was_sent(
    path: str, more: dict[str, Any], why: str
) -> None:
    async with fleet() as door:
        body = body_for(path, **more)
        door.engines[0].troubles = [Trouble("hang up")]
        told = await door.ask(path, body)
        assert told.done
        assert door.engines[1].requests == [(path, body)]
        door.engines[0].requests.clear()
        door.engines[0].troubles = [Trouble("reset", 3)]
        told = await door.ask(path, body)
        assert told.error["type"] == "engine_lost"
        assert not told.done
        assert not told.complete


async def test_a_broken_stream_that_should_have_been_resumed_ends_with_an_error_and_a_reason() -> (
    None
):
    async with fleet(1) as door:
        door.engines[0].troubles = [Trouble("reset", 3), *[Trouble("status")] * 9]
        told = await door.ask(CHAT, body_for(CHAT))
        assert told.finish_reasons == ["error"]
        assert told.error["type"] == "engine_lost"
        assert not told.done


async def test_a_stream_longer_than_what_is_remembered_is_not_resumed() -> None:
    async with fleet(resume_memory_mib=0.0002) as door:
        door.engines[0].troubles = [Trouble("reset", 30)]
        for engine in door.engines:
            engine.eos = False
        told = await door.ask(CHAT, body_for(CHAT, max_tokens=100, min_tokens=100))
        assert "longer than what is remembered" in told.error["message"]


async def test_resuming_can_be_switched_off() -> None:
    async with fleet(resume=False) as door:
        door.engines[0].troubles = [Trouble("reset", 3)]
        told = await door.ask(CHAT, body_for(CHAT))
        assert told.error["type"] == "engine_lost"
        assert "return_token_ids" not in door.engines[0].requests[0][1]


async def test_with_our_sampler_sampled_streams_resume_with_their_seed() -> None:
    async with fleet(resume_sampled=True) as door:
        for more in ({"temperature": 0.8}, {"temperature": 1, "seed": 7, "presence_penalty": 1}):
            for engine in door.engines:
                engine.requests.clear()
            body = body_for(CHAT, min_tokens=30, **more)
            whole = await undisturbed(door, CHAT, body)
            door.engines[0].troubles = [Trouble("error event", 9)]
            same(await door.ask(CHAT, body), whole)
            first = door.engines[0].requests[0][1]
            second = door.engines[1].requests[0][1]
            seed = first["vllm_xargs"]["tunan_seed"]
            assert seed == more.get("seed", seed)
            prompt = len(second["prompt"]) - 40 + second["max_tokens"]
            assert second["vllm_xargs"] == {"tunan_seed": seed, "tunan_prompt_tokens": prompt}


@pytest.mark.parametrize("kind", ["hang up", "status", "reset"])
async def test_an_answer_that_is_not_streamed_is_asked_for_again(kind: str) -> None:
    async with fleet() as door:
        body = body_for(CHAT) | {"stream": False}
        door.engines[0].troubles = [Trouble(kind)]
        told = await door.ask(CHAT, body)
        assert told.status == 200
        assert door.engines[1].requests == [(CHAT, body)]


async def test_what_the_client_did_wrong_is_passed_on_and_not_repeated() -> None:
    async with fleet() as door:
        door.engines[0].troubles = [Trouble("refuse")]
        told = await door.ask(CHAT, body_for(CHAT))
        assert told.status == 400
        assert door.engines[1].requests == []
        assert all(replica.ready for replica in door.replicas)


async def test_a_server_error_of_every_replica_is_passed_on() -> None:
    async with fleet(retries=2) as door:
        for engine in door.engines:
            engine.troubles = [Trouble("status")] * 9
        told = await door.ask(CHAT, body_for(CHAT))
        assert told.status == 500
        assert len(told.error["message"]) == 280_000
        assert sum(len(engine.requests) for engine in door.engines) == 3


async def test_many_streams_at_once_survive_many_losses() -> None:
    kinds = ["reset", "half an event", "error event", "garbage", "status", "hang up", "abort"]
    source = random.Random(0)
    async with fleet(3, retries=20, max_losses=99, probe_interval_s=60) as door:
        bodies = [
            (path, body_for(path, number, **source.choice(OPTIONS), max_tokens=60))
            for number, path in enumerate([CHAT, COMPLETION] * 12)
        ]
        whole = [await undisturbed(door, path, body) for path, body in bodies]
        for engine in door.engines:
            engine.gap_s = 0.001
            engine.troubles = [
                Trouble(source.choice(kinds), source.randrange(1, 30)) for _ in range(12)
            ]
        told = await asyncio.gather(*(door.ask(path, body) for path, body in bodies))
        for one, alone in zip(told, whole, strict=True):
            same(one, alone)
        assert all(not replica.in_flight for replica in door.replicas)
        assert all(not replica.outstanding_tokens for replica in door.replicas)
