"""The other outputs of npu-smi."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ascend.fakebin.answers import npu_smi
from tests.ascend.fakebin.machine import FakeDie, FakeMachine, a2
from tunan.ascend.probes import npu_smi_fields as fields
from tunan.ascend.probes.npu_smi_topology import parse_topology


def ask(machine: FakeMachine, *arguments: str) -> str:
    return npu_smi(machine, ["info", *arguments])


def test_the_board_tells_versions_and_whether_they_fit() -> None:
    board = fields.parse_board(ask(a2(1), "-t", "board", "-i", "0")).value
    assert board == fields.Board("25.5.1", "7.8.0.6.201", True, "19e5:d802")


def test_a_mismatch_of_driver_and_firmware_is_told() -> None:
    board = fields.parse_board(ask(a2(1, compatible="NOT OK"), "-t", "board", "-i", "0")).value
    assert board
    assert board.compatible is False


def test_a_card_that_has_dropped_out_is_one_line() -> None:
    probe = fields.parse_board(ask(a2(1), "-t", "board", "-i", "7"))
    assert (probe.value, probe.error) == (None, "it printed `Invalid card id.`")


def test_codes_behind_an_alarm_are_listed() -> None:
    machine = FakeMachine((FakeDie(0, health="Alarm", codes="80E01801 80CB8009"),))
    health = fields.parse_health(ask(machine, "-t", "health", "-i", "0", "-c", "0")).value
    assert health == fields.Health("Alarm", ("80E01801", "80CB8009"))


def test_errors_of_the_hbm_are_counted_and_not_those_of_the_ddr() -> None:
    machine = FakeMachine((FakeDie(0, double_bit=2),))
    ecc = fields.parse_ecc(ask(machine, "-t", "ecc", "-i", "0")).value
    assert ecc == fields.Ecc(single_bit=3, double_bit=2, isolated_pages=2)


def test_each_die_of_a_module_has_its_own_counts() -> None:
    machine = FakeMachine((FakeDie(0, 0, double_bit=0), FakeDie(0, 1, double_bit=4)), "dual")
    text = ask(machine, "-t", "ecc", "-i", "0")
    assert [fields.parse_ecc(text, chip).value.double_bit for chip in (0, 1)] == [0, 4]  # type: ignore[union-attr]
    assert fields.parse_ecc(text, 2).error == "no die 2 in it"


def test_a_count_without_a_die_is_of_the_first_or_of_the_one_asked_for() -> None:
    text = "\tNPU ID : 3\n\tHBM Double Bit Error Count : 5\n"
    assert fields.parse_ecc(text).value == fields.Ecc(None, 5, None)
    assert fields.parse_ecc(text, 1).value is None
    assert fields.parse_ecc(text, 1, asked=True).value == fields.Ecc(None, 5, None)


def test_a_count_of_another_die_than_the_one_asked_for_is_not_taken() -> None:
    text = "HBM Double Bit Error Count : 5\nChip ID : 0\n"
    assert fields.parse_ecc(text, 1, asked=True).value is None


def test_a_chip_without_hbm_counts_its_ddr() -> None:
    machine = FakeMachine((FakeDie(5, name="310P3", double_bit=1),), "no-hbm")
    ecc = fields.parse_ecc(ask(machine, "-t", "ecc", "-i", "5")).value
    assert ecc == fields.Ecc(single_bit=3, double_bit=1, isolated_pages=1)


@pytest.mark.parametrize("told", ["NA", "-", "-1", ""])
def test_a_count_that_is_not_told_is_unknown(told: str) -> None:
    text = f"HBM Single Bit Error Count : 0\nHBM Double Bit Error Count : {told}\nChip ID : 0\n"
    assert fields.parse_ecc(text).value == fields.Ecc(0, None, None)


def test_the_pages_of_newer_releases_are_counted() -> None:
    text = "HBM Double Bit Error Count : 1\nHBM Isolated Page Count : 7\n"
    assert fields.parse_ecc(text).value == fields.Ecc(None, 1, 7)


def test_controllers_are_no_devices_of_the_mapping() -> None:
    rows = fields.parse_mapping(ask(a2(3), "-m")).value
    assert rows
    assert [(row.npu, row.chip, row.logic_id, row.name) for row in rows] == [
        (n, 0, n, "Ascend 910B3") for n in range(3)
    ]


def test_processes_are_read_from_proc_mem() -> None:
    text = "\tNPU ID    : 0\n\tProcess id:77 Process name:VLLM::Worker Process memory(MB):512\n"
    (process,) = fields.parse_processes(0, text).value or ()
    assert (process.pid, process.name, process.memory_mb) == (77, "VLLM::Worker", 512)


def test_no_process_is_known_only_where_it_is_said() -> None:
    assert fields.parse_processes(0, "No process in device.\n").value == ()
    assert fields.parse_processes(0, "").value is None


def test_the_topology_has_links_and_the_cpus_near() -> None:
    topology = parse_topology(ask(a2(4), "-t", "topo")).value
    assert topology
    assert topology.links[0] == {0: "X", 1: "HCCS", 2: "HCCS", 3: "HCCS"}
    assert topology.affinity == {0: "0-23", 1: "0-23", 2: "24-47", 3: "24-47"}
    assert topology.kinds() == {"HCCS"}


def test_a_topology_cut_in_a_row_has_the_links_before_the_cut() -> None:
    text = ask(a2(4), "-t", "topo")
    topology = parse_topology(text[: text.index("NPU1  ", 60) + 30]).value
    assert topology
    assert len(topology.links[1]) < 4
    assert topology.affinity[1] is None


PARSERS = [
    fields.parse_board,
    fields.parse_health,
    fields.parse_ecc,
    fields.parse_mapping,
    lambda text: fields.parse_processes(0, text),
    parse_topology,
]


@pytest.mark.parametrize("parse", PARSERS)
@given(text=st.text() | st.text(alphabet="NPU0123 :\t\n|-X"))
def test_any_text_gives_a_result_or_one_line(parse: object, text: str) -> None:
    probe = parse(text)  # type: ignore[operator]
    assert (probe.value is None) == (probe.error is not None)
    assert "\n" not in (probe.error or "")
