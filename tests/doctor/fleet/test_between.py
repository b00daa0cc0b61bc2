"""Each check between machines passes for two that are alike and names what differs."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.ascend.fakebin.machine import FakeMachine, a2, a3
from tests.doctor.machines import ASCEND, HOME, FakeServer, asked, subject
from tunan.doctor.between import CHECKS
from tunan.doctor.finding import Finding, finding
from tunan.doctor.fleet.connection import LostError
from tunan.doctor.fleet.machine import Machine
from tunan.doctor.fleet.report import reported
from tunan.doctor.fleet.visit import Visited

TWO_NODES = asked(
    "ascend910b3", parallel={"tensor": 8, "pipeline": 2}, nodes=["192.0.2.17", "192.0.2.18"]
)
PORTS = (
    tuple(f"198.51.100.{number}" for number in range(8)),
    tuple(f"198.51.100.{number}" for number in range(8, 16)),
)
Change = Callable[[FakeServer], Any]


def servers() -> tuple[FakeServer, FakeServer]:
    made = tuple(FakeServer(a2(addresses=addresses)) for addresses in PORTS)
    for number, server in enumerate(made):
        server.system["hostname"] = f"atlas-{17 + number}"
        server.answers |= {
            "address:atlas-17": "192.0.2.17",
            "address:atlas-18": "192.0.2.18",
            "reach:192.0.2.17:29501": "refused",
            "reach:192.0.2.17:13389": "refused",
        }
    first, second = made
    return first, second


def machines(pair: Sequence[FakeServer], *, live: bool = True, ahead: float = 0.0) -> list[Machine]:
    return [
        Machine(f"n{number}", subject(server, TWO_NODES), (ahead * number, 0.01), live)
        for number, server in enumerate(pair, 1)
    ]


def found(check: str, seen: Sequence[Machine]) -> Finding | None:
    (the_check,) = [c for c in CHECKS if c.id == check]
    answer = the_check.look(seen)
    return finding(the_check, answer) if answer else None


def put(table: str, key: str, value: Any) -> Change:
    return lambda server: getattr(server, table).__setitem__(key, value)


def npus(machine: FakeMachine) -> Change:
    return lambda server: setattr(server, "npus", machine)


@pytest.mark.parametrize("check", [check.id for check in CHECKS])
def test_two_machines_that_are_alike_pass(check: str) -> None:
    told = found(check, machines(servers()))
    assert told
    assert (told.state, told.fix) == ("ok", None), told.found


CASES: list[tuple[str, str, str, Change]] = [
    ("same-chip", "failed", "n2: 4 x Ascend 910B3", npus(a2(4, addresses=PORTS[1]))),
    ("same-chip", "failed", "n2: 16 x Ascend 910C", npus(a3())),
    (
        "same-driver",
        "failed",
        "n1: 25.5.1; n2: 25.2.0",
        put("files", f"{ASCEND}/driver/version.info", "Version=25.2.0"),
    ),
    (
        "same-toolkit",
        "failed",
        "n1: 9.1.0; n2: 8.5.1",
        put("files", f"{HOME}/aarch64-linux/ascend_toolkit_install.info", "version=8.5.1"),
    ),
    ("same-packages", "failed", "torch 2.9.0", put("packages", "torch", "2.9.0")),
    ("same-tls", "failed", "n1: off; n2: on", npus(a2(addresses=PORTS[1], tls=(1,) * 8))),
    (
        "same-mtu",
        "failed",
        "n1: 1500; n2: 4200",
        npus(a2(addresses=PORTS[1], mtu=(4200,) * 8)),
    ),
    ("roce-subnet", "failed", "198.51.100.0, 198.51.100.1", npus(a2(addresses=PORTS[0]))),
    (
        "roce-subnet",
        "warning",
        "198.51.0.0/16: n1; 203.0.0.0/16: n2",
        npus(a2(addresses=tuple(f"203.0.113.{n}" for n in range(8)))),
    ),
    (
        "npu-ping",
        "failed",
        "n2 device 0 to n1: 0 of 3",
        npus(a2(addresses=PORTS[1], lost_packets=3)),
    ),
    (
        "npu-ping",
        "warning",
        "n2 device 0 to n1: 1 of 3",
        npus(a2(addresses=PORTS[1], lost_packets=2)),
    ),
    (
        "names",
        "warning",
        "n2 does not find atlas-17",
        put("answers", "address:atlas-17", None),
    ),
    (
        "names",
        "warning",
        "n2 finds atlas-17 at 127.0.0.1",
        put("answers", "address:atlas-17", "127.0.0.1"),
    ),
    (
        "engine-ports",
        "warning",
        "n2 to 192.0.2.17:29501: no answer",
        put("answers", "reach:192.0.2.17:29501", "no answer"),
    ),
    (
        "engine-ports",
        "warning",
        "something listens on 192.0.2.17:29501",
        put("answers", "reach:192.0.2.17:29501", "open"),
    ),
]


@pytest.mark.parametrize(("check", "state", "told", "change"), CASES, ids=lambda v: str(v)[:24])
def test_what_differs_is_named_with_a_fix(
    check: str, state: str, told: str, change: Change
) -> None:
    pair = servers()
    change(pair[1])
    result = found(check, machines(pair))
    assert result
    assert result.state == state
    assert told in result.found
    assert result.fix


def test_clocks_that_are_far_apart_are_a_warning() -> None:
    result = found("clock-skew", machines(servers(), ahead=-2.5))
    assert result
    assert (result.state, result.found) == (
        "warning",
        "n1 is ahead of n2: 2.50 s apart, give or take 0.02 s",
    )


def test_a_clock_that_a_slow_network_hides_is_unknown() -> None:
    pair = machines(servers())
    slow = [Machine(m.name, m.subject, (number * 0.9, 0.8)) for number, m in enumerate(pair)]
    result = found("clock-skew", slow)
    assert result
    assert result.state == "unknown"


def test_every_check_has_a_case_that_it_does_not_pass() -> None:
    assert {check.id for check in CHECKS} == {case[0] for case in CASES} | {"clock-skew"}


def test_what_one_machine_does_not_tell_is_unknown_not_equal() -> None:
    pair = servers()
    pair[1].packages = {}
    result = found("same-packages", machines(pair))
    assert result
    assert result.state == "unknown"
    assert result.found.endswith("but not told by n2")


def test_a_name_of_the_deployment_that_leads_nowhere_is_an_error() -> None:
    wanted = asked(parallel={"tensor": 2}, nodes=["head", "other"])
    pair = [Machine(f"n{n}", subject(server, wanted)) for n, server in enumerate(servers())]
    result = found("names", pair)
    assert result
    assert result.state == "failed"
    assert "n0 does not find head" in result.found


def test_of_bundles_only_what_they_hold_is_compared() -> None:
    pair = machines(servers(), live=False)
    for check in ("clock-skew", "names", "engine-ports", "npu-ping"):
        assert found(check, pair) is None
    subnet = found("roce-subnet", pair)
    assert subnet
    assert subnet.state == "unknown"
    for check in ("same-driver", "same-tls", "same-mtu", "same-packages"):
        result = found(check, pair)
        assert result
        assert result.state == "ok"


def test_machines_for_the_cpu_are_not_asked_for_npus() -> None:
    pair = [Machine(f"n{n}", subject(s, asked("cpu"))) for n, s in enumerate(servers())]
    told = {check.id for check in CHECKS if check.look(pair)}
    assert told == {"same-packages", "names", "engine-ports", "clock-skew"}


def test_copies_find_the_head_at_a_port_of_their_own() -> None:
    pair = servers()
    wanted = asked(parallel={"tensor": 4, "data": 2}, nodes=["192.0.2.17", "192.0.2.18"])
    pair[1].answers["reach:192.0.2.17:13389"] = "open"
    seen = [Machine(f"n{n}", subject(server, wanted)) for n, server in enumerate(pair)]
    result = found("engine-ports", seen)
    assert result
    assert result.found == "something listens on 192.0.2.17:13389"


def test_a_machine_that_is_lost_on_the_way_makes_a_check_unknown() -> None:
    pair = machines(servers())

    def gone(kind: str, what: str) -> Any:
        raise LostError("the cable is out")

    pair[1].subject.sight._ask = gone
    report = reported([Visited(machine.name, machine) for machine in pair])
    states = {each.id: (each.state, each.found) for each in report.between}
    assert states["same-driver"] == ("unknown", "a machine was lost: the cable is out")
