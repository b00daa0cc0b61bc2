"""Which requests warm an engine up, and when it is enough."""

import asyncio

import pytest

from tunan.supervisor import warmup
from tunan.supervisor.warmup import agree, prompt_lengths, warm_up


def test_prompts_cover_every_bucket_up_to_one_step() -> None:
    assert prompt_lengths(10, 256) == [16, 32, 64, 128, 256, 16, 16, 16, 16, 16]


def test_a_step_that_is_no_power_of_two_is_the_last_bucket() -> None:
    assert prompt_lengths(4, 50) == [16, 32, 50, 16]


def test_fewer_requests_than_buckets_send_the_short_ones() -> None:
    assert prompt_lengths(2, 4096) == [16, 32]
    assert prompt_lengths(0, 4096) == []


def test_three_times_within_ten_percent_agree() -> None:
    assert agree([9.0, 1.0, 1.05, 1.09])
    assert not agree([1.0, 1.0, 1.2])
    assert not agree([1.0, 1.0])


async def test_it_stops_once_short_requests_agree() -> None:
    sent: list[int] = []
    seen: list[tuple[int, int]] = []

    async def send(prompt: list[int]) -> None:
        sent.append(len(prompt))
        # Buckets take any time, short requests the same.
        await asyncio.sleep(0.05)

    done = await warm_up(send, 100, 64, lambda d, t: seen.append((d, t)))
    assert done == len(sent) < 100
    assert sent[:3] == [16, 32, 64]
    assert set(sent[3:]) == {16}
    assert seen[0] == (0, 100)
    assert seen[-1] == (done, 100)


async def test_no_request_is_sent_if_none_is_wanted() -> None:
    async def send(_prompt: list[int]) -> None:
        raise AssertionError

    assert await warm_up(send, 0, 64, lambda _d, _t: None) == 0


async def test_after_a_slow_bucket_the_larger_ones_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warmup, "SLOW_S", 0.01)
    sent: list[int] = []

    async def send(prompt: list[int]) -> None:
        sent.append(len(prompt))
        await asyncio.sleep(0.02 if len(prompt) >= 64 else 0)

    await warm_up(send, 8, 1024, lambda _d, _t: None)
    assert sent[:4] == [16, 32, 64, 16]
    assert max(sent) == 64


async def test_prompts_differ_so_that_no_cache_answers() -> None:
    sent: list[tuple[int, ...]] = []

    async def send(prompt: list[int]) -> None:
        sent.append(tuple(prompt))

    await warm_up(send, 6, 64, lambda _d, _t: None)
    assert len(set(sent)) == len(sent)
