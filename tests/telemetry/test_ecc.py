"""The errors in the NPUs' memory, from the stand-in for npu-smi."""

import sys
from dataclasses import replace
from pathlib import Path

from tests.ascend.fakebin.machine import FakeMachine, a2, a3
from tunan.ascend.probes.npus import look_at_npus
from tunan.ascend.probes.sight import Sight, recorded, this_machine
from tunan.telemetry.ecc import look_at_ecc_counts

FAKEBIN = Path(__file__).parents[1] / "ascend/fakebin"


def sight_of(folder: Path, machine: FakeMachine) -> Sight:
    environment = {
        "PATH": f"{FAKEBIN}:/usr/bin:/bin",
        "FAKE_PYTHON": sys.executable,
        "FAKE_MACHINE": str(machine.write(folder / "machine.json")),
    }
    return this_machine(folder, environment)


def test_each_die_has_its_own(tmp_path: Path) -> None:
    machine = a3(2)
    dies = tuple(replace(die, double_bit=place) for place, die in enumerate(machine.dies))
    sight = sight_of(tmp_path, replace(machine, dies=dies))
    report = look_at_npus(sight).value
    assert report
    counts = look_at_ecc_counts(sight, report)
    assert {place: ecc.double_bit for place, ecc in counts.items()} == {0: 0, 1: 1, 2: 2, 3: 3}


def test_after_a_tool_that_tells_nothing_no_further_device_is_asked(tmp_path: Path) -> None:
    report = look_at_npus(sight_of(tmp_path, a2(2))).value
    assert report
    silent = {"status": None, "output": "", "error": "gave no answer in 15 s"}
    told = {"status": 0, "output": "HBM Double Bit Error Count : 1\n", "error": None}
    commands = [f"run:npu-smi info -t ecc -i {n}" for n in (0, 1)]
    sight = recorded(dict(zip(commands, (silent, told), strict=True)))
    assert look_at_ecc_counts(sight, report) == {}
    sight = recorded(dict(zip(commands, (told, silent), strict=True)))
    assert list(look_at_ecc_counts(sight, report)) == [0]
