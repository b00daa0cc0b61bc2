"""Processor, memory, disks and NUMA nodes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunan.ascend.probes import host
from tunan.ascend.probes.lscpu import Processor, parse_lscpu
from tunan.ascend.probes.sight import this_machine

HOST = """\
Architecture:           aarch64
CPU(s):                 96
Vendor ID:              HiSilicon
  Model name:           Kunpeng-920
    BIOS Model name:    HUAWEI Kunpeng 920 5250
    Thread(s) per core: 1
    Core(s) per socket: 48
    Socket(s):          2
    CPU max MHz:        2600.0000
    Flags:              fp asimd asimddp
NUMA:
  NUMA node(s):         2
  NUMA node0 CPU(s):    0-47
  NUMA node1 CPU(s):    48-95
"""
CONTAINER = """\
Architecture:                    aarch64
CPU(s):                          96
Vendor ID:                       HiSilicon
Model name:                      Kunpeng-920
Core(s) per cluster:             48
Socket(s):                       -
Flags:                           fp asimd sve i8mm
NUMA node0 CPU(s):               0-47
"""


def processor(text: str) -> Processor:
    value = parse_lscpu(text).value
    assert value
    return value


def test_the_firmware_s_name_is_the_model() -> None:
    found = processor(HOST)
    assert found.model == "HUAWEI Kunpeng 920 5250"
    assert (found.sockets, found.cores_per_socket, found.max_mhz) == (2, 48, 2600.0)
    assert found.nodes == {0: "0-47", 1: "48-95"}
    assert found.kunpeng
    assert found.kunpeng.memory_gbps == 187.7


def test_a_container_does_not_tell_the_number_of_sockets() -> None:
    found = processor(CONTAINER)
    assert (found.sockets, found.cores_per_socket) == (None, None)
    assert found.is_kunpeng
    assert found.kunpeng is None
    assert "sve" in found.flags


@given(st.text() | st.text(alphabet="CPUSocket()NA node0 :-\n0123456789"))
def test_any_text_gives_a_processor_or_one_line(text: str) -> None:
    for probe in (parse_lscpu(text), host.parse_meminfo(text)):
        assert (probe.value is None) == (probe.error is not None)


def test_memory_is_in_bytes() -> None:
    text = "MemTotal: 1048576 kB\nMemAvailable: 524288 kB\nHugePages_Total: 4\nHugePages_Free: 3\n"
    memory = host.parse_meminfo(text + "Hugepagesize: 2048 kB\n").value
    assert memory == host.Memory(1 << 30, 1 << 29, 4, 3, 2 << 20)


def test_disks_are_those_with_a_size_and_no_loops(tmp_path: Path) -> None:
    for name, sectors in (("nvme0n1", "2048"), ("sda", "1024"), ("loop0", "8"), ("sdb", "0")):
        folder = tmp_path / "sys/block" / name
        folder.mkdir(parents=True)
        (folder / "size").write_text(sectors)
    disks = host.look_at_disks(this_machine(tmp_path, {}))
    assert disks == (host.Disk("nvme0n1", 1 << 20, True), host.Disk("sda", 1 << 19, False))


def test_nodes_have_the_cpus_that_the_kernel_lists(tmp_path: Path) -> None:
    folder = tmp_path / "sys/devices/system/node/node3"
    folder.mkdir(parents=True)
    (folder / "cpulist").write_text("72-95\n")
    assert host.look_at_nodes(this_machine(tmp_path, {})) == {3: "72-95"}


@pytest.mark.parametrize(("told", "node"), [("2\n", 2), ("-1\n", None), ("", None)])
def test_a_device_s_node_is_unknown_where_the_firmware_does_not_say(
    tmp_path: Path, told: str, node: int | None
) -> None:
    folder = tmp_path / "sys/bus/pci/devices/0000:c1:00.0"
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text(told)
    assert host.node_of_bus(this_machine(tmp_path, {}), "0000:C1:00.0") == node


def test_a_kernel_switch_is_the_choice_in_brackets() -> None:
    assert host.chosen("always [madvise] never\n") == "madvise"
    assert host.chosen(None) is None
