"""How long a replica may be silent, without an engine."""

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from tunan.config.deployment import Gateway
from tunan.gateway.health import Health
from tunan.gateway.pool import Pool
from tunan.gateway.replica import Answer, HttpAddress, Replica, Stage
from tunan.gateway.upstream import Upstreams

SETTINGS = Gateway(stall_s=2, stall_multiple=20, first_token_s=120)


@contextlib.contextmanager
def silent(seconds: float, interval_s: float = 0.05) -> Iterator[tuple[Health, Replica]]:
    """A replica beside another one, with a stream that has been silent for so long."""
    replicas = [Replica(HttpAddress("http://a"), name, stage=Stage.READY) for name in "ab"]
    with replicas[0].answering(100) as answer:
        answer.steady = answer.generating = True
        answer.interval_s = interval_s
        answer.waiting_since = asyncio.get_running_loop().time() - seconds
        yield Health(Pool(replicas), Upstreams(replicas), SETTINGS), replicas[0]


@pytest.mark.parametrize(
    ("seconds", "interval_s", "answers", "lost"),
    [
        (1.8, 0.05, False, False),
        (2.1, 0.05, False, True),
        (2.1, 0.05, True, False),
        (2.6, 0.05, True, True),
        (2.6, 0.2, False, False),
        (4.1, 0.2, False, True),
    ],
)
async def test_silence_counts_sooner_if_the_server_does_not_answer_either(
    seconds: float, interval_s: float, answers: bool, lost: bool
) -> None:
    with silent(seconds, interval_s) as (health, replica):
        assert (health.late(replica, answers=answers) >= 1) is lost


async def test_a_replica_that_answers_probes_may_read_prompts() -> None:
    with silent(5) as (health, replica), replica.answering(1000):
        assert health.late(replica, answers=True) < 1
        assert health.late(replica, answers=False) >= 1
    with silent(12.1) as (health, replica), replica.answering(1000):  # 3 times 2 s + 2 s
        assert health.late(replica, answers=True) >= 1


async def test_a_stopped_replica_is_lost_at_once_and_the_only_one_later() -> None:
    with silent(0) as (health, replica):
        now = asyncio.get_running_loop().time()
        assert not health.frozen(replica)
        replica.freeze("its process was stopped", now - 1)
        assert health.frozen(replica)
        health._pool.replicas[1].lose("test")
        assert not health.frozen(replica)
        replica.freeze("its process was stopped", now - 121)
        assert health.frozen(replica)


async def test_an_answer_that_is_not_streamed_has_the_time_of_a_first_token_after_a_sign() -> None:
    with silent(0) as (health, replica):
        now = asyncio.get_running_loop().time()
        (answer,) = replica.answers
        answer.steady, answer.waiting_since = False, now - 500
        assert health.late(replica, answers=False) == 0
        assert health.idle(replica) > 1
        replica.worked_at = now - 100
        assert health.idle(replica) < 1
        replica.worked_at = now - 130
        assert health.idle(replica) > 1
        answer.by_model = False  # it takes no model
        assert health.idle(replica) == 0


async def test_the_only_replica_has_the_time_of_a_first_token() -> None:
    with silent(60) as (health, replica):
        health._pool.replicas[1].lose("test")
        assert health.late(replica, answers=False) < 1


def test_one_long_gap_is_no_new_rhythm() -> None:
    answer = Answer(Replica(HttpAddress("http://a")), 100)
    now = 0.0
    for gap in [0.05] * 20 + [5.0]:
        answer.waiting_since = now
        now += gap
        answer.heard(now)
    assert answer.interval_s == pytest.approx(0.05 + 0.45 * 0.1)
