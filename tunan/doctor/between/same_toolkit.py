"""The same CANN toolkit."""

from collections.abc import Sequence

from tunan.doctor.between.equal import equal, hardware
from tunan.doctor.checks.toolkit import toolkit_version
from tunan.doctor.finding import Answer, Check
from tunan.doctor.fleet.machine import Machine


def look(machines: Sequence[Machine]) -> Answer | None:
    """As each machine's `toolkit` check reads it."""
    if not hardware(machines):
        return None
    return equal(machines, toolkit_version, "install the same CANN everywhere: tunan install")


CHECK = Check("same-toolkit", "error", look)
