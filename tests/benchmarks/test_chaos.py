"""The chaos benchmark's own parts, against fake engines: what it counts is what happened."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientError, ClientSession

from benchmarks.chaos_check import Difference, broken, compare, judged, quantile
from benchmarks.chaos_proxy import Mode, faulty_proxy
from benchmarks.chaos_scenario import Scenario, read
from benchmarks.chaos_streams import Ask, Progress, Received, load, receive, run_load
from tests.gateway.fake_engine import FakeEngine, Trouble, fake_engine
from tests.gateway.fleet import fleet

EXPECTED = list(range(100, 140))


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with fake_engine() as running:
        running.eos = False
        yield running


def ask(number: int = 0, tokens: int = 30) -> Ask:
    return load("fake", 8, tokens)[number]


async def answer(url: str, wanted: Ask) -> Received:
    async with ClientSession() as client:
        return await receive(client, url, wanted)


@pytest.mark.parametrize(
    ("found", "difference"),
    [
        (EXPECTED, Difference()),
        (EXPECTED[:25], Difference(lost=15)),
        (EXPECTED[:10] + EXPECTED[13:], Difference(lost=3)),
        (EXPECTED[:10] + EXPECTED[8:], Difference(duplicated=2)),
        (EXPECTED + EXPECTED[-2:], Difference(duplicated=2)),
        ([*EXPECTED[:30], *range(10)], Difference(changed=10)),
        ([*EXPECTED[:30], 1, 2], Difference(lost=8, changed=2)),
        ([], Difference(lost=40)),
    ],
)
def test_a_departure_from_the_expected_tokens_is_told_apart(
    found: list[int], difference: Difference
) -> None:
    assert compare(EXPECTED, found) == difference


def test_the_99th_percentile_of_eight_is_the_largest() -> None:
    assert quantile(list(range(8)), 0.99) == 7
    assert quantile(list(range(8)), 0.5) == 3
    assert quantile([], 0.5) == 0


def test_checks_that_do_not_hold_are_named() -> None:
    found = {"tokens_lost": 3, "stall_p99_s": 0.5}
    assert broken(found, {"tokens_lost": 0, "stall_p99_s": 1.0}) == ["tokens_lost 3 > 0"]


def test_the_scenarios_are_as_the_schema_wants_them_and_check_figures_that_there_are() -> None:
    scenarios = read()
    figures = set(judged({}, []))
    assert len({one.name for one in scenarios}) == len(scenarios) > 10
    for one in scenarios:
        assert set(one.most) <= figures
        assert one.most["tokens_lost"] == 0


def test_a_scenario_with_an_unknown_event_is_refused() -> None:
    with pytest.raises(ValueError, match="earthquake"):
        Scenario.model_validate({"name": "x", "events": [{"at": 0, "do": "earthquake"}]})


def test_the_load_has_every_kind_of_request() -> None:
    kinds = {one.name.split(" ", 1)[1] for one in load("m", 8, 1)}
    assert kinds == {"greedy completion", "seeded completion", "greedy chat", "seeded chat"}


async def test_a_whole_answer_is_received_with_its_tokens_and_times(engine: FakeEngine) -> None:
    for number in (0, 2):
        got = await answer(engine.url, ask(number))
        assert (got.problem, got.finish, got.usage) == ("", "length", 30)
        assert len(got.ids) == len(got.times) == 30


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("reset", "Client"),
        ("status", "status 500"),
        ("error event", "error event: EngineCore died"),
        ("no done", "Client"),
        ("end early", "ended without"),
    ],
)
async def test_an_answer_that_breaks_is_a_request_lost(
    engine: FakeEngine, kind: str, problem: str
) -> None:
    whole = await answer(engine.url, ask())
    engine.troubles.append(Trouble(kind, 5))
    got = await answer(engine.url, ask())
    assert problem in got.problem
    assert judged({"a": whole}, [("a", got)])["requests_lost"] == 1


async def test_a_stall_is_the_longest_gap(engine: FakeEngine) -> None:
    got = Received(0.0, times=[1.0, 1.1, 1.9, 2.0])
    assert got.longest_gap_s == pytest.approx(0.8)


async def test_answers_that_resume_behind_a_gateway_lose_nothing() -> None:
    async with fleet(resume_sampled=True) as behind:
        for engine in behind.engines:
            engine.eos, engine.gap_s = False, 0.002
        asks, enough = load("fake", 8, 40), asyncio.Event()
        enough.set()
        undisturbed = dict((await run_load(behind.url, asks, Progress(), enough)).answers)
        behind.engines[0].troubles += [Trouble("reset", 7), Trouble("half an event", 20)]
        found = await run_load(behind.url, asks, Progress(), enough)
    figures = judged(undisturbed, found.answers)
    assert figures["problems"] == []
    for key, limit in read()[0].most.items():
        assert figures[key] <= limit, key


async def test_a_sustained_load_goes_on_until_it_is_enough(engine: FakeEngine) -> None:
    progress, enough = Progress(), asyncio.Event()
    running = asyncio.create_task(run_load(engine.url, load("fake", 2, 5), progress, enough))
    await progress.reaches(40)
    enough.set()
    assert len((await running).answers) >= 8


@pytest.mark.parametrize("mode", [Mode.HALF_EVENT, Mode.GARBAGE, Mode.ANSWER_500])
async def test_the_proxy_breaks_answers_and_gets_well_again(engine: FakeEngine, mode: Mode) -> None:
    async with faulty_proxy(int(engine.url.rsplit(":", 1)[1])) as proxy:
        assert (await answer(proxy.url, ask())).problem == ""
        proxy.become(mode)
        assert (await answer(proxy.url, ask())).problem != ""
        proxy.become(Mode.PASS)
        assert (await answer(proxy.url, ask())).problem == ""


async def test_the_proxy_cuts_running_answers(engine: FakeEngine) -> None:
    engine.gap_s = 0.01
    progress = Progress()
    async with (
        faulty_proxy(int(engine.url.rsplit(":", 1)[1])) as proxy,
        ClientSession() as client,
    ):
        running = asyncio.create_task(receive(client, proxy.url, ask(), progress))
        await progress.reaches(3)
        proxy.cut()
        got = await running
    assert got.problem != ""
    assert 3 <= len(got.ids) < 30


async def test_no_connection_is_served_any_more_when_the_proxy_has_ended(
    engine: FakeEngine,
) -> None:
    engine.gap_s = 0.05
    before = asyncio.all_tasks()
    progress = Progress()
    async with ClientSession() as client:
        async with faulty_proxy(int(engine.url.rsplit(":", 1)[1])) as proxy:
            running = asyncio.create_task(receive(client, proxy.url, ask(), progress))
            await progress.reaches(1)
        left = [task for task in asyncio.all_tasks() - before if "chaos_proxy" in repr(task)]
        assert left == []
        assert (await running).problem != ""


async def test_a_black_hole_holds_everything_back_until_it_is_over(engine: FakeEngine) -> None:
    engine.gap_s = 0.01
    progress = Progress()
    async with (
        faulty_proxy(int(engine.url.rsplit(":", 1)[1])) as proxy,
        ClientSession() as client,
    ):
        running = asyncio.create_task(receive(client, proxy.url, ask(), progress))
        await progress.reaches(3)
        proxy.become(Mode.BLACK_HOLE)
        done, _ = await asyncio.wait({running}, timeout=0.6)
        assert not done
        proxy.become(Mode.PASS)
        got = await running
    assert got.problem == ""
    assert len(got.ids) == 30


async def test_a_proxy_before_nothing_refuses() -> None:
    async with faulty_proxy(1) as proxy, ClientSession() as client:
        with pytest.raises(ClientError):
            await client.get(proxy.url)


def test_figures_can_be_written_as_json() -> None:
    figures: dict[str, Any] = judged({"a": Received(0.0)}, [("a", Received(0.0, problem="x"))])
    assert json.loads(json.dumps(figures)) == figures
