"""The network ports, from the stand-in for hccn_tool."""

import sys
from pathlib import Path

import pytest

from tests.ascend.fakebin.machine import a2
from tunan.ascend.probes.sight import Sight, recorded, this_machine
from tunan.telemetry.links import look_at_links

FAKEBIN = Path(__file__).parents[1] / "ascend/fakebin"


def sight_of(folder: Path, link: str) -> Sight:
    environment = {
        "PATH": f"{FAKEBIN}:/usr/bin:/bin",
        "FAKE_PYTHON": sys.executable,
        "FAKE_MACHINE": str(a2(2, link=link).write(folder / "machine.json")),
    }
    return this_machine(environment=environment)


@pytest.mark.parametrize(("link", "up"), [("UP", True), ("DOWN", False)])
def test_each_port_is_up_or_down(tmp_path: Path, link: str, up: bool) -> None:
    assert look_at_links(sight_of(tmp_path, link), 2) == {0: up, 1: up}


def test_what_is_not_told_is_left_out(tmp_path: Path) -> None:
    assert look_at_links(sight_of(tmp_path, "?"), 2) == {}


@pytest.mark.parametrize(("status", "error"), [(None, "gave no answer in 10 s"), (-9, None)])
def test_after_a_tool_that_hangs_or_was_ended_no_further_port_is_asked(
    status: int | None, error: str | None
) -> None:
    hangs = {"status": status, "output": "", "error": error}
    up = {"status": 0, "output": "link status: UP\n", "error": None}
    sight = recorded({f"run:hccn_tool -i {n} -link -g": a for n, a in enumerate((hangs, up))})
    assert look_at_links(sight, 2) == {}
