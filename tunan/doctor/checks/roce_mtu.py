"""The largest packet of the NPUs' ports: the two ends of a connection have to agree on it."""

from tunan.ascend.probes.hccn import parse_mtu
from tunan.doctor.checks.roce_link import hccn_text, looks_at_ports
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject
from tunan.doctor.wording import by_value, counted


def look(subject: Subject) -> Answer | None:
    """Compares those of this machine; `same-mtu` compares machines."""
    if not looks_at_ports(subject):
        return None
    sizes = mtus(subject)
    known = {size for size in sizes if size is not None}
    needed = "the same on all devices of all machines, and on the switch"
    fix = "for i in $(seq 0 7); do hccn_tool -i $i -mtu -s size SIZE; done, on every machine"
    if not known:
        return Answer(None, mtu_error(subject), needed, "hccn_tool -i 0 -mtu -g")
    if len(known) > 1:
        told = by_value({n: str(size) for n, size in enumerate(sizes) if size})
        return Answer(False, told, needed, fix)
    (size,) = known
    if None in sizes:
        return Answer(None, f"{size}, not told by device {sizes.index(None)}", needed, fix)
    return Answer(True, f"{size} on {counted(len(sizes), 'port')}", needed)


def mtus(subject: Subject) -> list[int | None]:
    """Of each device, in bytes."""
    numbers = range(len(subject.devices))
    return [parse_mtu(hccn_text(subject, number, "-mtu")).value for number in numbers]


def mtu_error(subject: Subject) -> str:
    """Why the first device does not tell its own."""
    return parse_mtu(hccn_text(subject, 0, "-mtu")).error or ""


CHECK = Check("roce-mtu", "warning", look)
