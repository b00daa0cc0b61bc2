"""Backoff and the crash-loop breaker."""

from tunan.config import Restart
from tunan.supervisor.failures import Failures


def test_the_wait_doubles_up_to_the_longest() -> None:
    failures = Failures(Restart(first_wait_s=1, longest_wait_s=5, failures=100))
    assert [failures.add(None) for _ in range(5)] == [1, 2, 4, 5, 5]


def test_after_so_many_failures_in_a_row_there_is_no_more_start() -> None:
    failures = Failures(Restart(failures=3))
    assert [failures.add(10) for _ in range(3)] == [1, 2, None]


def test_a_run_that_was_healthy_for_long_begins_the_count_anew() -> None:
    failures = Failures(Restart(failures=3, healthy_s=300))
    failures.add(None)
    failures.add(299)
    assert failures.add(300) == 1
    assert failures.in_a_row == 1


def test_asked_for_by_hand_the_count_begins_anew() -> None:
    failures = Failures(Restart(failures=2))
    failures.add(None)
    failures.forget()
    assert failures.add(None) == 1


def test_any_number_of_failures_has_a_wait() -> None:
    failures = Failures(Restart(failures=5000))
    assert [failures.add(None) for _ in range(4000)][-1] == 60
