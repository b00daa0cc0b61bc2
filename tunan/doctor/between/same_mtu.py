"""The largest packet of the NPUs' ports, over all machines."""

from collections.abc import Sequence

from tunan.doctor.between.equal import equal, hardware
from tunan.doctor.checks.roce_mtu import mtus
from tunan.doctor.finding import Answer, Check
from tunan.doctor.fleet.machine import Machine
from tunan.doctor.subject import Subject


def look(machines: Sequence[Machine]) -> Answer | None:
    """Two ends that differ lose what only one of them takes."""
    if not hardware(machines):
        return None
    fix = "for i in $(seq 0 7); do hccn_tool -i $i -mtu -s size SIZE; done, on every machine"
    return equal(machines, _told, fix)


def _told(subject: Subject) -> str | None:
    sizes = mtus(subject)
    known = sorted({size for size in sizes if size is not None})
    return None if not known or None in sizes else " and ".join(map(str, known))


CHECK = Check("same-mtu", "error", look)
