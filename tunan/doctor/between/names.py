"""Whether the machines find one another by name."""

from collections.abc import Sequence

from tunan.doctor.finding import Answer, Check
from tunan.doctor.fleet.hosts import bare, is_name
from tunan.doctor.fleet.machine import Machine, each


def look(machines: Sequence[Machine]) -> Answer | None:
    """The names of `nodes` have to lead somewhere from every machine, and not to itself.

    The machines' own names should, too: what logs and Ray call them.
    """
    live = [machine for machine in machines if machine.live]
    if len(live) < 2:
        return None
    deployment = live[0].subject.deployment
    named = deployment.nodes if deployment else ()
    # A name that was only given to ssh may be one of its settings.
    nodes = {bare(name) for name in named or [m.name for m in live] if is_name(name)}
    own = {machine.name: machine.subject.sight.system("hostname") or "" for machine in live}
    wrong = {
        text: fatal for told in each(live, lambda m: _wrong(m, nodes, own)) for text, fatal in told
    }
    needed = "each machine finds the others' names, none at 127.0.0.1"
    fix = 'echo "ADDRESS NAME" >> /etc/hosts, on every machine, or a name server that knows them'
    if wrong:
        severity = "error" if named and any(wrong.values()) else "warning"
        return Answer(False, "; ".join(wrong), needed, fix, severity)  # type: ignore[arg-type]
    return Answer(True, ", ".join(sorted({*nodes, *own.values()} - {""})), needed)


def _wrong(machine: Machine, nodes: set[str], own: dict[str, str]) -> list[tuple[str, bool]]:
    others = {name for host, name in own.items() if host != machine.name and name}
    mine = own[machine.name]
    found: list[tuple[str, bool]] = []
    for name in sorted(nodes | others):
        address = machine.subject.sight.address(name)
        if address is None:
            found.append((f"{machine.name} does not find {name}", name in nodes))
        elif _is_loopback(address) and name not in (mine, bare(machine.name)):
            found.append((f"{machine.name} finds {name} at {address}", name in nodes))
    return found


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


CHECK = Check("names", "error", look)
