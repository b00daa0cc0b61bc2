"""Which replica gets the next request."""

import pytest

from tunan.gateway.pool import AFFINITY_SLACK_TOKENS, Pool
from tunan.gateway.replica import HttpAddress, Replica, Role, Stage


def replica(number: int, role: Role = Role.ACTIVE, stage: Stage = Stage.READY) -> Replica:
    return Replica(HttpAddress(f"http://h:{number + 1}"), f"replica-{number}", role, stage)


def test_the_replica_with_the_fewest_outstanding_tokens_is_chosen() -> None:
    first, second = replica(0), replica(1)
    pool = Pool([first, second])
    with first.answering(100), second.answering(10) as answer:
        assert pool.choose() is second
        with second.answering(200):
            assert pool.choose() is first
        answer.paid(10)
        assert second.outstanding_tokens == 0
    assert (first.outstanding_tokens, first.in_flight) == (0, 0)


def test_a_standby_is_chosen_only_when_no_active_replica_is_ready() -> None:
    active, standby = replica(0), replica(1, Role.STANDBY)
    pool = Pool([active, standby])
    with active.answering(1000):
        assert pool.choose() is active
    active.lose("gone")
    assert pool.choose() is standby
    standby.lose("gone")
    assert pool.choose() is None


def test_a_prompts_prefix_stays_with_its_replica_until_that_has_much_more_to_do() -> None:
    pool = Pool([replica(0), replica(1), replica(2)])
    keys = [bytes([number]) for number in range(60)]
    homes = {key: pool.choose(key) for key in keys}
    assert len(set(homes.values())) == 3
    home = homes[keys[0]]
    assert home is not None
    with home.answering(AFFINITY_SLACK_TOKENS):
        assert pool.choose(keys[0]) is home
        with home.answering(1):
            assert pool.choose(keys[0]) is not home


def test_a_lost_replica_moves_only_its_own_prefixes() -> None:
    replicas = [replica(0), replica(1), replica(2)]
    pool = Pool(replicas)
    keys = [bytes([number]) for number in range(60)]
    before = {key: pool.choose(key) for key in keys}
    replicas[1].lose("gone")
    for key in keys:
        if before[key] is not replicas[1]:
            assert pool.choose(key) is before[key]


def test_a_replica_to_avoid_is_chosen_only_if_there_is_no_other() -> None:
    first, second = replica(0), replica(1)
    pool = Pool([first, second])
    assert pool.choose(avoid={first}) is second
    second.lose("gone")
    assert pool.choose(avoid={first}) is first


def test_a_held_replica_is_not_chosen() -> None:
    first, second = replica(0), replica(1)
    pool = Pool([first, second])
    first.hold(True)
    assert pool.choose() is second
    first.hold(False)
    assert pool.choose() is first


def test_losing_a_replica_cuts_what_runs_on_it_and_tells_once() -> None:
    lost = replica(0)
    told: list[str] = []
    lost.on_lost.append(lambda _, reason: told.append(reason))
    cut: list[tuple[str, bool]] = []
    with lost.answering(5, lambda reason, planned: cut.append((reason, planned))):
        lost.lose("reset")
        lost.lose("again", planned=True)
    assert (cut, told) == ([("reset", False)], ["reset"])
    assert lost.describe() == "down: reset"
    lost.move(Stage.STARTING)
    lost.move(Stage.READY)
    assert lost.ready


def test_failed_is_final_until_it_is_started_again() -> None:
    failed = replica(0)
    failed.move(Stage.FAILED, problem="died")
    failed.move(Stage.READY)
    failed.lose("more")
    assert failed.describe() == "failed: died"
    failed.restart()
    assert failed.describe() == "starting"


def test_a_pool_without_replicas_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a replica"):
        Pool([])
