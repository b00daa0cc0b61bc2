"""Whether the NPUs of one machine reach those of another."""

from collections.abc import Sequence

from tunan.doctor.between.equal import hardware
from tunan.doctor.checks.roce_ping import judged, ping, roce_addresses
from tunan.doctor.finding import Answer, Check
from tunan.doctor.fleet.machine import Machine, each


def look(machines: Sequence[Machine]) -> Answer | None:
    """Each machine asks the next one, the last the first: device 0 device 0, 1 device 1, ..."""
    live = [machine for machine in machines if machine.live]
    if not hardware(machines) or len(live) < 2:
        return None
    addresses = {machine.name: roce_addresses(machine.subject) for machine in live}
    following = {m.name: live[(place + 1) % len(live)] for place, m in enumerate(live)}

    def asked(machine: Machine) -> list[tuple[int, str]]:
        there = addresses[following[machine.name].name][: len(machine.subject.devices)]
        return [(number, address) for number, address in enumerate(there) if address]

    told = each(live, lambda m: [(n, ping(m.subject, n, a)) for n, a in asked(m)])
    return judged(
        {
            f"{machine.name} device {number} to {following[machine.name].name}": probe
            for machine, pings in zip(live, told, strict=True)
            for number, probe in pings
        }
    )


CHECK = Check("npu-ping", "error", look)
