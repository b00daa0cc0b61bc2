"""The exporter's metrics: names, what is unknown, devices that disappear, tools that fail."""

import re
import threading
import urllib.request
from dataclasses import replace

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.ascend.fakebin.machine import (
    FakeDie,
    FakeMachine,
    FakeProcess,
    a2,
    a3,
    inference_card,
)
from tests.ascend.fakebin.tables import info
from tunan.ascend.probes.npu import NpuDevice, NpuReport
from tunan.ascend.probes.npu_smi_fields import Ecc
from tunan.ascend.probes.npu_smi_table import parse_table
from tunan.ascend.probes.probe import Probe
from tunan.telemetry.exporter import exporting, registry_of
from tunan.telemetry.reading import Reader, device_ids

Samples = dict[tuple[str, str], float]


class FakeTool:
    """What npu-smi prints, which a test may change between two readings."""

    def __init__(self, machine: FakeMachine) -> None:
        self.text = info(machine)
        self.reader = Reader(lambda: parse_table(self.text), interval=3600)

    def samples(self) -> Samples:
        """Every sample after one more reading, by name and label `id`."""
        self.reader.read_once()
        text = generate_latest(registry_of(self.reader)).decode()
        return {
            (sample.name, sample.labels.get("id", "")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


def test_a_device_has_the_names_of_npu_exporter_and_our_short_ones() -> None:
    die = FakeDie(0, load="37", memory=(12000, 65536), power="201.5", temperature="52")
    samples = FakeTool(FakeMachine((die,))).samples()
    expected = {
        "npu_chip_info_health_status": 1,
        "npu_chip_info_temperature": 52,
        "npu_chip_info_power": 201.5,
        "npu_chip_info_utilization": 37,
        "npu_chip_info_hbm_total_memory": 65536,
        "npu_chip_info_hbm_used_memory": 12000,
        "npu_chip_info_hbm_utilization": 18,
        "npu_utilization": 37,
        "npu_memory_used": 12000,
        "npu_chip_info_name": 1,
    }
    assert {name: samples[name, "0"] for name in expected} == expected
    assert samples["machine_npu_nums", ""] == 1
    assert samples["tunan_monitor_npus_readable", ""] == 1


def test_labels_are_those_of_npu_exporter() -> None:
    tool = FakeTool(a2(1))
    tool.reader.read_once()
    text = generate_latest(registry_of(tool.reader)).decode()
    labels = (
        'container_name="",id="0",model_name="910B3",namespace="",'
        'pcie_bus_info="0000:41:00.0",pod_name="",vdie_id=""'
    )
    assert f"npu_chip_info_power{{{labels}}} 95.5" in text


@pytest.mark.parametrize("unknown", ["NA", "-", "-1"])
def test_what_is_unknown_has_no_sample(unknown: str) -> None:
    samples = FakeTool(FakeMachine((FakeDie(0, power=unknown, load=unknown),))).samples()
    for name in ("npu_chip_info_power", "npu_chip_info_utilization", "npu_utilization"):
        assert (name, "0") not in samples
    assert samples["npu_chip_info_health_status", "0"] == 1


def test_dies_have_the_driver_s_numbers() -> None:
    samples = FakeTool(a3(2)).samples()
    assert {number for name, number in samples if name == "npu_memory_used"} == {"0", "1", "2", "3"}


def test_a_card_without_hbm_has_its_ddr() -> None:
    samples = FakeTool(inference_card()).samples()
    assert samples["npu_chip_info_total_memory", "0"] == 21500
    assert samples["npu_memory_used", "0"] == 1700
    assert ("npu_chip_info_hbm_total_memory", "0") not in samples


def test_an_alarm_is_not_healthy() -> None:
    assert (
        FakeTool(FakeMachine((FakeDie(0, health="Alarm"),))).samples()[
            "npu_chip_info_health_status", "0"
        ]
        == 0
    )


def test_processes_are_counted_where_they_are_told() -> None:
    samples = FakeTool(a2(2, processes=(FakeProcess(0, 77, 512),))).samples()
    assert samples["npu_chip_info_process_info_num", "0"] == 1
    assert samples["npu_chip_info_process_info_num", "1"] == 0
    assert samples["npu_chip_info_process_info", "0"] == 512
    assert (
        samples["npu_chip_info_process_info", "1"] == 0
    )  # as npu-exporter says that none is there
    untold = FakeTool(a2(2, process_table=False)).samples()
    assert ("npu_chip_info_process_info_num", "0") not in untold


def test_the_machine_is_counted_as_npu_exporter_counts_it() -> None:
    samples = FakeTool(a3(2)).samples()
    assert (samples["machine_npu_nums", ""], samples["machine_card_nums", ""]) == (4, 2)
    dies = [FakeDie(n, health=health) for n, health in enumerate(("OK", "Alarm", "-"))]
    samples = FakeTool(FakeMachine(tuple(dies))).samples()
    kinds = ("healthy", "unhealthy", "unknown")
    assert [samples[f"machine_{kind}_npu_nums", ""] for kind in kinds] == [1, 1, 1]
    assert samples["node_base_info", ""] == 1


def test_errors_of_the_memory_are_shown_where_they_are_told_and_of_hbm_alone() -> None:
    reports = {
        "a2": (parse_table(info(a2(3))), {0: Ecc(7, 2, 1), 1: Ecc(None, 0, None)}),
        "card": (parse_table(info(inference_card())), {0: Ecc(7, 2, 1)}),
    }
    found = {}
    for name, (report, counts) in reports.items():
        reader = Reader(lambda: report, 3600, ecc=lambda _: counts)  # noqa: B023
        reader.read_once()
        text = generate_latest(registry_of(reader)).decode()
        found[name] = re.findall(
            r'(?m)^npu_chip_info_hbm_ecc_(\w+)_cnt\{.*id="(\d)".* (\S+)$', text
        )
    assert found["a2"] == [
        ("single_bit_error", "0", "7.0"),
        ("double_bit_error", "0", "2.0"),
        ("double_bit_error", "1", "0.0"),
        ("double_bit_isolated_pages", "0", "1.0"),
    ]
    assert found["card"] == []


def test_a_device_that_disappears_is_missing_and_comes_back() -> None:
    machine = a2(2)
    tool = FakeTool(machine)
    assert tool.samples()["tunan_monitor_npu_missing", "1"] == 0
    tool.text = info(replace(machine, dies=machine.dies[:1]))
    samples = tool.samples()
    assert samples["tunan_monitor_npu_missing", "1"] == 1
    assert samples["machine_npu_nums", ""] == 1
    tool.text = info(machine)
    assert tool.samples()["tunan_monitor_npu_missing", "1"] == 0


def test_a_failed_reading_leaves_no_stale_figure_and_is_counted() -> None:
    tool = FakeTool(a2(1))
    tool.samples()
    tool.text = "dcmi module initialize failed. ret is -8005"
    samples = tool.samples()
    assert samples["tunan_monitor_npus_readable", ""] == 0
    assert samples["tunan_monitor_failed_readings_total", ""] == 1
    assert samples["tunan_monitor_npu_missing", "0"] == 1
    assert ("npu_chip_info_power", "0") not in samples


def test_two_devices_never_share_a_label() -> None:
    devices = (NpuDevice(0, 0, physical_id=1), NpuDevice(0, 1))
    assert device_ids(NpuReport(devices)) == ["0", "1"]


def test_metrics_are_served_until_the_end() -> None:
    with exporting("127.0.0.1", 0, 3600) as (port, _):
        url = f"http://127.0.0.1:{port}/metrics"
        with urllib.request.urlopen(url, timeout=60) as answer:
            text = answer.read().decode()
    assert "tunan_host_memory_total_bytes" in text
    assert "tunan_monitor_npus_readable" in text
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=60)


def test_a_reading_that_hangs_is_not_waited_for_at_the_end() -> None:
    first, second, release = threading.Event(), threading.Event(), threading.Event()

    def read() -> Probe[NpuReport]:
        if first.is_set():
            second.set()
            release.wait()
        first.set()
        return parse_table(info(a2(1)))

    reader = Reader(read, interval=0.001)
    reader.start()
    assert second.wait(60)
    reader.stop()
    assert reader.last.report
    release.set()


def test_a_port_is_up_or_down_or_has_no_sample() -> None:
    links = [{0: True, 1: False}, {}]
    reader = Reader(lambda: parse_table(info(a2(3))), 3600, lambda _: links.pop(0))
    reader.read_once()
    text = generate_latest(registry_of(reader)).decode()
    found = re.findall(r'(?m)^npu_chip_info_link_status\{.*id="(\d)".* (\S+)$', text)
    assert found == [("0", "1.0"), ("1", "0.0")]


def test_ports_are_not_asked_at_every_reading_but_when_devices_change() -> None:
    machine = a2(2)
    tool, asked = FakeTool(machine), list[int]()

    def links(count: int) -> dict[int, bool]:
        asked.append(count)
        return dict.fromkeys(range(count), True)

    reader = Reader(lambda: parse_table(tool.text), 0.001, links)
    reader.read_once()
    reader.read_once()
    assert asked == [2]
    assert reader.last.links == {0: True, 1: True}
    tool.text = info(replace(machine, dies=machine.dies[:1]))
    reader.read_once()
    assert asked == [2, 1]


def test_what_takes_long_does_not_hold_up_the_figures() -> None:
    shown: list[int] = []

    def links(count: int) -> dict[int, bool]:
        shown.append(len(reader.last.report.devices) if reader.last.report else 0)
        return dict.fromkeys(range(count), True)

    reader = Reader(lambda: parse_table(info(a2(3))), 3600, links)
    reader.read_once()
    assert shown == [3]
    assert reader.last.links == {0: True, 1: True, 2: True}
