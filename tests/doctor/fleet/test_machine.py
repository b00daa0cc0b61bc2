"""Work on several machines at once."""

import threading

import pytest

from tests.doctor.machines import FakeServer, subject
from tunan.doctor.fleet.machine import Machine, each

MACHINES = [Machine(name, subject(FakeServer())) for name in ("n1", "n2", "n3")]


def test_the_results_are_in_the_order_of_the_machines() -> None:
    first_may_end = threading.Event()

    def work(machine: Machine) -> str:
        if machine.name == "n1":
            first_may_end.wait(30)
        else:
            first_may_end.set()
        return machine.name

    assert each(MACHINES, work) == ["n1", "n2", "n3"]


def test_a_failure_does_not_wait_for_machines_that_are_still_asked() -> None:
    may_end, ended = threading.Event(), threading.Event()

    def work(machine: Machine) -> None:
        if machine.name == "n1":
            raise RuntimeError("n1 is gone")
        may_end.wait(30)
        ended.set()

    try:
        with pytest.raises(RuntimeError, match="n1 is gone"):
            each(MACHINES, work)
        assert not ended.is_set()
    finally:
        may_end.set()
