"""The settings of an emulated machine, checked before anything starts."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def environment(emulator: ModuleType, base: dict[str, str], **settings: Any) -> dict[str, str]:
    made: dict[str, str] = emulator.EmulatedMachine(**settings).environment(base)
    return made


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"memory": "lots"}, "write bytes, or a number with K, M or G"),
        ({"memory": "٤G"}, "write bytes, or a number with K, M or G"),
        ({"memory": "99999999999999999999G"}, "a device has 64M to 1024G"),
        ({"memory": "9" * 5000}, "write bytes"),
        ({"memory": "0.1"}, "a device has 64M to 1024G"),
        ({"memory": "63.9M"}, "a device has 64M to 1024G"),
        ({"memory": "0"}, "a device has 64M to 1024G"),
        ({"faults": "slow:us=99999999999999999999"}, "is too large for us"),
        ({"faults": "ecc:after=1000000001"}, "is too large for after"),
        ({"faults": "oom:bytes=99999999999999999999G"}, "is too large for bytes"),
        ({"faults": "ecc:after=1,after=2"}, "after is given twice"),
        ({"faults": "ecc:device=" + "9" * 5000}, "is too large for device"),
        ({"faults": "ecc:device=1"}, "there is no device 1"),
        ({"faults": "ecc:while=here"}, "'here' is no value for while"),
        ({"faults": "hccl-buffer:op=aclnnAdd"}, "hccl-buffer needs mb"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_means_nothing_is_refused(
    emulator: ModuleType, settings: dict[str, str], complaint: str
) -> None:
    with pytest.raises(emulator.SettingsError, match=complaint):
        environment(emulator, {}, **settings)


@pytest.mark.parametrize("memory", ["64M", "0.5G", "1024G", "67108864"])
def test_the_memory_is_handed_on_as_it_was_written(emulator: ModuleType, memory: str) -> None:
    assert environment(emulator, {}, memory=memory)["TUNAN_EMULATE_MEMORY"] == memory


@pytest.mark.parametrize(
    "faults",
    [
        "slow:us=1000000000",
        "oom:bytes=0.5G;ecc:after=1,device=0",
        "lost:while=/tmp/a b=c",
        "graph-streams:graphs=4,while=/x;hccl-buffer:op=aclnnAdd,mb=300",
    ],
)
def test_a_fault_within_bounds_is_handed_on(emulator: ModuleType, faults: str) -> None:
    assert environment(emulator, {}, faults=faults)["TUNAN_EMULATE_FAULTS"] == faults


def test_a_trace_that_cannot_be_written_is_refused(emulator: ModuleType, tmp_path: Path) -> None:
    for trace in (tmp_path, tmp_path / "no" / "trace", Path("/proc/no-such-file")):
        with pytest.raises(emulator.SettingsError, match=f"trace {trace}: .*; name a file"):
            environment(emulator, {}, trace=trace)


def test_a_trace_keeps_what_is_in_it(emulator: ModuleType, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_text("before\n")
    assert environment(emulator, {}, trace=trace)["TUNAN_EMULATE_TRACE"] == str(trace)
    assert trace.read_text() == "before\n"


def test_a_folder_of_shared_devices_is_made(emulator: ModuleType, tmp_path: Path) -> None:
    state = tmp_path / "machine"
    for _ in range(2):  # the second command finds it
        assert environment(emulator, {}, state=state)["TUNAN_EMULATE_STATE"] == str(state)
    assert state.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_made_is_refused(emulator: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for state in (tmp_path / "file", tmp_path / "no" / "folder"):
        with pytest.raises(emulator.SettingsError, match=f"state {state}: .*; name a folder"):
            environment(emulator, {}, state=state)


def test_an_emulator_within_another_shares_its_devices_only_where_it_is_told(
    emulator: ModuleType, tmp_path: Path
) -> None:
    outer = environment(emulator, {}, state=tmp_path)
    assert "TUNAN_EMULATE_STATE" not in environment(emulator, outer)


def test_an_emulator_within_another_has_its_own_libraries_only(emulator: ModuleType) -> None:
    base = {"LD_LIBRARY_PATH": "/opt/lib", "PYTHONPATH": "/opt/python"}
    once = environment(emulator, base)
    assert once["LD_LIBRARY_PATH"].endswith("/lib:/opt/lib")
    assert environment(emulator, once) == once
    lacking = once | {"LD_LIBRARY_PATH": "/tmp/tunan-emulator-x:" + once["LD_LIBRARY_PATH"]}
    assert environment(emulator, lacking) == once
