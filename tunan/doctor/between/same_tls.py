"""The TLS switch of the NPUs' ports, over all machines."""

from collections.abc import Sequence

from tunan.ascend.probes.hccn import parse_tls
from tunan.doctor.between.equal import equal, hardware
from tunan.doctor.checks.roce_link import hccn_text
from tunan.doctor.finding import Answer, Check
from tunan.doctor.fleet.machine import Machine
from tunan.doctor.subject import Subject


def look(machines: Sequence[Machine]) -> Answer | None:
    """HCCL fails where one end wants TLS and the other does not."""
    if not hardware(machines):
        return None
    fix = "for i in $(seq 0 7); do hccn_tool -i $i -tls -s enable 0; done, on every machine"
    return equal(machines, _told, fix)


def _told(subject: Subject) -> str | None:
    numbers = range(len(subject.devices))
    switches = {parse_tls(hccn_text(subject, number, "-tls")).value for number in numbers}
    if len(switches) > 1 and None not in switches:
        return "on for some devices"
    words = {True: "on", False: "off"}
    return words.get(switches.pop()) if len(switches) == 1 else None  # type: ignore[arg-type]


CHECK = Check("same-tls", "error", look)
