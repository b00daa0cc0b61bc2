"""The machine around the NPUs: processor, memory, disks, kernel settings."""

import re
from dataclasses import dataclass

from tunan.ascend.probes.lscpu import Processor, parse_lscpu
from tunan.ascend.probes.numbers import whole
from tunan.ascend.probes.probe import Probe
from tunan.ascend.probes.sight import Sight

_SECTOR = 512
_KIB = 1024


@dataclass(frozen=True)
class Memory:
    """/proc/meminfo, in bytes; `hugepages_*` in pages of `hugepage_bytes`."""

    total: int
    available: int | None
    hugepages: int
    hugepages_free: int
    hugepage_bytes: int


@dataclass(frozen=True)
class Disk:
    """A block device of /sys/block: its size in bytes, and whether it is NVMe."""

    name: str
    size: int
    nvme: bool


def look_at_processor(sight: Sight) -> Probe[Processor]:
    """`lscpu`."""
    ran = sight.run("lscpu")
    return Probe.failed("lscpu", ran.error) if ran.error else parse_lscpu(ran.output)


def look_at_memory(sight: Sight) -> Probe[Memory]:
    """/proc/meminfo."""
    source = "/proc/meminfo"
    text = sight.read(source)
    return Probe.failed(source, "it cannot be read") if text is None else parse_meminfo(text)


def parse_meminfo(text: str) -> Probe[Memory]:
    """The kernel's list of sizes, most in kB."""
    values: dict[str, int] = {}
    for line in text.splitlines():
        key, _, rest = line.partition(":")
        number = whole(rest.split()[0]) if rest.split() else None
        if number is not None:
            values.setdefault(key.strip(), number)
    if "MemTotal" not in values:
        return Probe.failed("/proc/meminfo", "it has no MemTotal")
    available = values.get("MemAvailable")
    return Probe(
        Memory(
            total=values["MemTotal"] * _KIB,
            available=None if available is None else available * _KIB,
            hugepages=values.get("HugePages_Total", 0),
            hugepages_free=values.get("HugePages_Free", 0),
            hugepage_bytes=values.get("Hugepagesize", 0) * _KIB,
        ),
        "/proc/meminfo",
    )


def look_at_disks(sight: Sight) -> tuple[Disk, ...]:
    """Every block device with a size, without partitions, loops and RAM disks."""
    found: list[Disk] = []
    for name in sight.names("/sys/block"):
        if re.match(r"(?:loop|ram|zram|sr|fd|dm-|md|nbd)", name):
            continue
        sectors = whole(sight.read(f"/sys/block/{name}/size") or "")
        if sectors:
            found.append(Disk(name, sectors * _SECTOR, name.startswith("nvme")))
    return tuple(found)


def look_at_nodes(sight: Sight) -> dict[int, str]:
    """NUMA nodes and their CPUs, as the kernel lists them."""
    folder = "/sys/devices/system/node"
    nodes: dict[int, str] = {}
    for name in sight.names(folder):
        if match := re.fullmatch(r"node([0-9]{1,4})", name):
            nodes[int(match[1])] = (sight.read(f"{folder}/{name}/cpulist") or "").strip()
    return nodes


def node_of_bus(sight: Sight, bus: str) -> int | None:
    """The NUMA node of a PCI address; None where the firmware does not say (-1)."""
    return whole(sight.read(f"/sys/bus/pci/devices/{bus.lower()}/numa_node") or "")


def chosen(text: str | None) -> str | None:
    """The choice in brackets of a kernel switch: `always [madvise] never` is `madvise`."""
    match = re.search(r"\[([^\]]*)\]", text or "")
    return match[1] if match else None
