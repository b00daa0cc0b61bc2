"""`lscpu`: the processor, in its old flat layout, the indented one, and as containers show it."""

import re
from dataclasses import dataclass

from tunan.ascend.catalogue import Kunpeng, kunpengs
from tunan.ascend.probes.numbers import decimal, whole
from tunan.ascend.probes.probe import Probe


@dataclass(frozen=True)
class Processor:
    """The CPUs of a machine. `model`: the firmware's name where it is told, else the kernel's."""

    architecture: str | None
    model: str | None
    vendor: str | None
    cpus: int | None
    sockets: int | None
    cores_per_socket: int | None
    threads_per_core: int | None
    max_mhz: float | None
    flags: frozenset[str]
    nodes: dict[int, str]

    @property
    def kunpeng(self) -> Kunpeng | None:
        """The catalogue's figures, if its model is in it."""
        for name, figures in kunpengs().items():
            if self.model and name.lower() in self.model.lower().replace("-", " "):
                return figures
        return None

    @property
    def is_kunpeng(self) -> bool:
        """Whether it is one at all, of a known model or not."""
        return "kunpeng" in (self.model or "").lower() or (self.vendor or "") == "HiSilicon"


def parse_lscpu(text: str) -> Probe[Processor]:
    """Reads `lscpu`; what is not told, or told as `-`, is None."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and value.strip() not in ("", "-"):
            fields.setdefault(key.strip().lower(), value.strip())
    if "architecture" not in fields and "cpu(s)" not in fields:
        return Probe.failed("lscpu", "it names no architecture")
    nodes = {
        int(match[1]): cpus
        for key, cpus in fields.items()
        if (match := re.fullmatch(r"numa node([0-9]{1,4}) cpu\(s\)", key))
    }
    return Probe(
        Processor(
            architecture=fields.get("architecture"),
            model=fields.get("bios model name") or fields.get("model name"),
            vendor=fields.get("vendor id"),
            cpus=whole(fields.get("cpu(s)", "")),
            sockets=whole(fields.get("socket(s)", "")),
            cores_per_socket=whole(fields.get("core(s) per socket", "")),
            threads_per_core=whole(fields.get("thread(s) per core", "")),
            max_mhz=decimal(fields.get("cpu max mhz", "")),
            flags=frozenset(fields.get("flags", "").split()),
            nodes=nodes,
        ),
        "lscpu",
    )
