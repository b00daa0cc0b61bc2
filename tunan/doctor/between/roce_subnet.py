"""The addresses of the NPUs' ports: all different, and in one network."""

from collections import Counter
from collections.abc import Sequence
from ipaddress import ip_network

from tunan.ascend.probes.hccn import parse_ip
from tunan.doctor.between.equal import hardware
from tunan.doctor.checks.roce_link import hccn_text
from tunan.doctor.finding import Answer, Check
from tunan.doctor.fleet.machine import Machine, each


def look(machines: Sequence[Machine]) -> Answer | None:
    """Several networks work if their gateways route; nothing works with an address twice."""
    if not hardware(machines):
        return None
    needed = "one network, no address twice"
    if not all(machine.live for machine in machines):
        return Answer(None, "bundles hold no addresses that could be compared", needed)
    told = each(machines, _ports)
    twice = [a for a, count in Counter(a for ports in told for a, _ in ports).items() if count > 1]
    fix = "hccn_tool -i N -ip -s address ADDRESS netmask MASK"
    if twice:
        return Answer(False, f"{', '.join(twice)} twice", needed, fix, "error")
    networks: dict[str, list[str]] = {}
    for machine, ports in zip(machines, told, strict=True):
        for network in {_network(address, mask) for address, mask in ports}:
            networks.setdefault(network, []).append(machine.name)
    silent = [m.name for m, ports in zip(machines, told, strict=True) if not ports]
    if len(networks) > 1:
        found = "; ".join(f"{network}: {', '.join(on)}" for network, on in networks.items())
        return Answer(False, found, needed, f"{fix}, or a gateway that routes between them")
    if silent:
        return Answer(None, f"no address told by {', '.join(silent)}", needed, fix)
    return Answer(True, next(iter(networks)), needed)


def _ports(machine: Machine) -> list[tuple[str, str]]:
    numbers = range(len(machine.subject.devices))
    told = (parse_ip(hccn_text(machine.subject, number, "-ip")).value for number in numbers)
    return [pair for pair in told if pair]


def _network(address: str, mask: str) -> str:
    try:
        return str(ip_network(f"{address}/{mask}", strict=False))
    except ValueError:
        return f"{address}/{mask}"


CHECK = Check("roce-subnet", "warning", look)
