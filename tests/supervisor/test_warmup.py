"""Which requests warm an engine up, and when it is enough."""

import pytest

from tunan.supervisor import warmup
from tunan.supervisor.warmup import agree, prompt_lengths, warm_up


class FakeClock:
    """What `warm_up` measures by: it goes on only when a test says so."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(warmup, "time", clock)
    return clock


def test_prompts_cover_every_bucket_up_to_one_step() -> None:
    lengths = prompt_lengths(10, 256, compiles=True)
    assert lengths == [16, 32, 64, 128, 256, 16, 16, 16, 16, 16]


def test_an_eager_engine_gets_the_shortest_and_the_longest_prompt() -> None:
    assert prompt_lengths(4, 256, compiles=False) == [16, 256, 16, 16]
    assert prompt_lengths(2, 16, compiles=False) == [16, 16]


def test_a_step_that_is_no_power_of_two_is_the_last_bucket() -> None:
    assert prompt_lengths(4, 50, compiles=True) == [16, 32, 50, 16]


def test_fewer_requests_than_buckets_send_the_short_ones() -> None:
    assert prompt_lengths(2, 4096, compiles=True) == [16, 32]
    assert prompt_lengths(0, 4096, compiles=True) == []


def test_three_times_within_ten_percent_agree() -> None:
    assert agree([9.0, 1.0, 1.05, 1.09])
    assert not agree([1.0, 1.0, 1.2])
    assert not agree([1.0, 1.0])


async def test_it_stops_once_short_requests_agree(clock: FakeClock) -> None:
    took = {16: [1.9, 1.4, 1.0, 1.05, 1.09], 32: [0.7], 64: [1.8]}
    sent: list[int] = []
    seen: list[tuple[int, int]] = []

    async def send(prompt: list[int]) -> None:
        sent.append(len(prompt))
        clock.now += took[len(prompt)].pop(0)

    done = await warm_up(send, 100, 64, lambda d, t: seen.append((d, t)), compiles=True)
    assert done == len(sent)
    assert sent == [16, 32, 64, 16, 16, 16, 16]
    assert seen[0] == (0, 100)
    assert seen[-1] == (done, 100)


async def test_no_request_is_sent_if_none_is_wanted() -> None:
    async def send(_prompt: list[int]) -> None:
        raise AssertionError

    assert await warm_up(send, 0, 64, lambda _d, _t: None, compiles=True) == 0


async def test_after_a_slow_bucket_the_larger_ones_are_left_out(clock: FakeClock) -> None:
    sent: list[int] = []

    async def send(prompt: list[int]) -> None:
        sent.append(len(prompt))
        clock.now += 1.1 * warmup.SLOW_S if len(prompt) >= 64 else 0.9 * warmup.SLOW_S

    await warm_up(send, 8, 1024, lambda _d, _t: None, compiles=True)
    assert sent[:4] == [16, 32, 64, 16]
    assert max(sent) == 64


async def test_prompts_differ_so_that_no_cache_answers() -> None:
    sent: list[tuple[int, ...]] = []

    async def send(prompt: list[int]) -> None:
        sent.append(tuple(prompt))

    await warm_up(send, 6, 64, lambda _d, _t: None, compiles=True)
    assert len(set(sent)) == len(sent)
