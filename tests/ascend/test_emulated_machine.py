"""The settings of the emulated machine are checked before anything starts."""

from pathlib import Path
from typing import Any

import pytest

from tests.ascend.emulated import run_snippet

pytestmark = pytest.mark.ascend


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("flood", "unknown fault 'flood'; known: oom, missing"),
        ("oom", "oom needs bytes"),
        ("oom:bytes=much", "'much' is no value for bytes"),
        ("ecc:before=3", "ecc has no 'before', it has after, device"),
        ("slow:us", "'us' is not key=value"),
        ("missing:op=aclnnNothing", "the emulator has no operator 'aclnnNothing'"),
    ],
)
def test_a_fault_that_means_nothing_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    outcome = run_snippet("", tmp_path, faults=text)
    assert outcome.status == 2
    assert outcome.errors.startswith("tunan: ")
    assert complaint in outcome.errors
    assert len(outcome.errors.splitlines()) == 1


def test_faults_are_read_in_order() -> None:
    from tunan_emulator.faults import parse_faults

    faults = parse_faults("oom:bytes=1G,device=1;slow:us=5")
    assert [(fault.kind, dict(fault.keys)) for fault in faults] == [
        ("oom", {"bytes": "1G", "device": "1"}),
        ("slow", {"us": "5"}),
    ]


def test_a_user_s_own_setting_wins() -> None:
    from tunan_emulator import EmulatedMachine

    environment = EmulatedMachine().environment({"OMP_NUM_THREADS": "7"})
    assert environment["OMP_NUM_THREADS"] == "7"
    assert environment["TUNAN_EMULATE_SOC"] == "Ascend910B3"


@pytest.mark.parametrize("machine", [{"devices": 0}, {"soc": "h100"}, {"memory": "lots"}], ids=str)
def test_a_machine_that_cannot_be_is_refused(machine: dict[str, Any]) -> None:
    from tunan_emulator import EmulatedMachine, SettingsError

    with pytest.raises(SettingsError):
        EmulatedMachine(**machine).environment({})


def test_the_devices_are_those_asked_for(tmp_path: Path) -> None:
    code = "print('RESULT', json.dumps([torch.npu.device_count(), torch.npu.get_device_name(0)]))"
    assert run_snippet(code, tmp_path, devices=3).result == [3, "Ascend910B3"]
