"""`npu-smi info` in every layout; the tables are printed by tests/ascend/fakebin."""

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ascend.fakebin.machine import (
    FakeDie,
    FakeMachine,
    FakeProcess,
    a2,
    a3,
    first_generation,
    inference_card,
)
from tests.ascend.fakebin.tables import info
from tunan.ascend.probes.npu import NpuReport
from tunan.ascend.probes.npu_smi_table import parse_table

LAYOUTS = [
    a2(),
    a3(),
    a3(layout="wide", version="26.0.rc2"),
    inference_card(),
    first_generation(),
    FakeMachine((FakeDie(0, name="Ascend950PR", memory=(9000, 131072)),), layout="name-cell"),
]


def report(text: str) -> NpuReport:
    probe = parse_table(text)
    assert probe.error is None
    assert probe.value is not None
    return probe.value


@pytest.mark.parametrize("machine", LAYOUTS, ids=lambda machine: machine.layout)
def test_every_layout_tells_the_same(machine: FakeMachine) -> None:
    found = report(info(machine))
    assert found.driver == machine.version
    assert len(found.devices) == len(machine.dies)
    for device, die in zip(found.devices, machine.dies, strict=True):
        assert (device.npu, device.chip, device.name) == (die.npu, die.chip, die.name)
        assert (device.health, device.bus) == (die.health, die.bus)
        assert device.temperature_c == float(die.temperature)
        assert device.aicore_percent == int(die.load)
        assert (device.ddr_used_mb, device.ddr_total_mb) == die.ddr
        memory = (None, None) if machine.layout == "no-hbm" else die.memory
        assert (device.hbm_used_mb, device.hbm_total_mb) == memory


def test_two_dies_of_a_module_have_their_numbers_and_the_second_no_power() -> None:
    first, second = report(info(a3())).devices[2:4]
    assert [(d.npu, d.chip, d.physical_id) for d in (first, second)] == [(1, 0, 2), (1, 1, 3)]
    assert (first.power_w, second.power_w) == (171.5, None)


def test_a_card_without_hbm_has_its_memory_in_ddr() -> None:
    (device,) = report(info(inference_card())).devices
    assert (device.memory_used_mb, device.memory_total_mb) == (1700, 21500)
    assert device.npu == 5
    assert device.power_w is None


def test_numbers_that_touch_the_slash_are_read() -> None:
    die = FakeDie(0, memory=(61825, 65536), hugepages=(11123, 11123))
    text = info(FakeMachine((die,)))
    assert "61825/ 65536" in text
    (device,) = report(text).devices
    assert (device.hbm_used_mb, device.hugepages_used) == (61825, 11123)


@pytest.mark.parametrize("unknown", ["NA", "-", "-1"])
def test_what_stands_for_unknown_is_none(unknown: str) -> None:
    (device,) = report(info(FakeMachine((FakeDie(0, power=unknown, load=unknown),)))).devices
    assert (device.power_w, device.aicore_percent) == (None, None)


def test_a_910a_that_calls_itself_910b_is_a_910a() -> None:
    found = report(info(first_generation()))
    chip = found.identity(found.devices[0]).chip
    assert chip
    assert chip.name == "Ascend 910A"


def test_an_ascend910_with_phy_ids_is_a_910c() -> None:
    found = report(info(a3()))
    chip = found.identity(found.devices[0]).chip
    assert chip
    assert chip.name == "Ascend 910C"


def test_processes_belong_to_their_die() -> None:
    processes = (FakeProcess(0, 4001, 47000), FakeProcess(0, 4002, 100, chip=1, name=""))
    found = report(info(a3(2, processes=processes)))
    first, second, *_ = found.devices
    assert [p.pid for p in found.processes_of(first) or ()] == [4001]
    assert [(p.pid, p.name) for p in found.processes_of(second) or ()] == [(4002, None)]


def test_an_npu_that_says_it_has_no_process_has_none() -> None:
    found = report(info(a2(2)))
    assert found.processes_of(found.devices[0]) == ()


def test_without_a_process_table_nothing_is_known_of_processes() -> None:
    found = report(info(a2(2, process_table=False)))
    assert found.processes_of(found.devices[0]) is None


def test_an_npu_that_the_process_table_does_not_reach_is_not_idle() -> None:
    text = info(a2(4, processes=tuple(FakeProcess(n, 90 + n, 5000) for n in range(4))))
    found = report(text[: text.index("| 2       0")])
    assert found.processes_of(found.devices[1])
    assert found.processes_of(found.devices[3]) is None


def test_a_device_whose_second_row_is_missing_keeps_what_the_first_said() -> None:
    text = info(a2(2))
    device = report(text[: text.index("0000:42:00.0") - 30]).devices[1]
    assert (device.npu, device.health, device.chip, device.memory_total_mb) == (1, "OK", None, None)


def test_a_table_may_begin_without_its_head() -> None:
    text = info(a2(1, process_table=False))
    (device,) = report(text[text.index("| 0 ") :]).devices
    assert device.hbm_total_mb == 65536


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("dcmi module initialize failed. ret is -8005", "-8005: the driver does not answer"),
        ("the device is used. ret is -8020", "-8020: the devices are in use by another container"),
        ("something failed. ret is -8123", "-8123"),
        ("bash: npu-smi: command not found", "begins `bash: npu-smi: command not found`"),
        ("", "no output"),
    ],
)
def test_what_is_no_table_is_one_line_of_why(text: str, why: str) -> None:
    probe = parse_table(text)
    assert probe.value is None
    assert why in (probe.error or "")
    assert "\n" not in (probe.error or "")


def test_an_alarm_is_told_of_its_device_alone() -> None:
    machine = a2(2)
    dies = (machine.dies[0], replace(machine.dies[1], health="Alarm"))
    assert [d.health for d in report(info(replace(machine, dies=dies))).devices] == ["OK", "Alarm"]


@given(st.text())
def test_any_text_gives_a_result_or_one_line(text: str) -> None:
    probe = parse_table(text)
    assert (probe.value is None) == (probe.error is not None)
    assert "\n" not in (probe.error or "")


@given(
    st.sampled_from(LAYOUTS),
    st.lists(st.tuples(st.integers(0, 4000), st.sampled_from("|+ 0/-:\n九٣x")), max_size=30),
)
def test_a_damaged_table_gives_a_result_or_one_line(
    machine: FakeMachine, damage: list[tuple[int, str]]
) -> None:
    characters = list(info(machine))
    for position, character in damage:
        characters[position % len(characters)] = character
    probe = parse_table("".join(characters))
    assert (probe.value is None) == (probe.error is not None)
    for device in probe.value.devices if probe.value else ():
        assert device.npu >= 0
        assert device.chip is None or device.chip >= 0


@given(st.sampled_from(LAYOUTS), st.integers(0, 6000))
def test_a_table_cut_anywhere_tells_nothing_that_is_not_so(
    machine: FakeMachine, length: int
) -> None:
    whole, cut = report(info(machine)), parse_table(info(machine)[:length]).value
    for device, true in zip(cut.devices if cut else (), whole.devices, strict=False):
        for name, value in asdict(device).items():
            assert value is None or value == getattr(true, name), name
    assert cut is None or len(cut.devices) <= len(whole.devices)
