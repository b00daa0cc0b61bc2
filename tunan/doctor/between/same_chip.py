"""The same number of the same chips: ranks are spread evenly, and the slowest sets the pace."""

from collections.abc import Sequence

from tunan.doctor.between.equal import equal, hardware
from tunan.doctor.finding import Answer, Check
from tunan.doctor.fleet.machine import Machine
from tunan.doctor.subject import Subject


def look(machines: Sequence[Machine]) -> Answer | None:
    """By the catalogue's name where the chip is known, else by the driver's."""
    if not hardware(machines):
        return None
    return equal(machines, _told, "take machines with the same NPUs, or parallel.devices")


def _told(subject: Subject) -> str | None:
    if not subject.devices:
        return None
    name = subject.chip.name if subject.chip else subject.devices[0].name
    return f"{len(subject.devices)} x {name}" if name else None


CHECK = Check("same-chip", "error", look)
