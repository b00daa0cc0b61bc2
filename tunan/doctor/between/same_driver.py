"""The same NPU driver: HCCL of different ones need not understand each other."""

from collections.abc import Sequence

from tunan.doctor.between.equal import equal, hardware
from tunan.doctor.checks.driver import driver_version
from tunan.doctor.finding import Answer, Check
from tunan.doctor.fleet.machine import Machine


def look(machines: Sequence[Machine]) -> Answer | None:
    """As each machine's `driver` check reads it."""
    if not hardware(machines):
        return None
    return equal(machines, driver_version, "install the same Ascend HDK everywhere, then reboot")


CHECK = Check("same-driver", "error", look)
