"""The ports on which the machines of a replica find the head: free there, and reached from all."""

from collections.abc import Sequence

from tunan.ascend.recipe import DATA_PARALLEL_PORT, MASTER_PORT
from tunan.doctor.finding import Answer, Check
from tunan.doctor.fleet.hosts import bare
from tunan.doctor.fleet.machine import Machine, each


def look(machines: Sequence[Machine]) -> Answer | None:
    """A connection that is refused was let through, and nobody listens yet: that is as it should
    be. Nothing that anybody sends means that something on the way drops it."""
    live = [machine for machine in machines if machine.live]
    if len(live) < 2:
        return None
    deployment = live[0].subject.deployment
    head = bare(deployment.nodes[0] if deployment and deployment.nodes else live[0].name)
    ports = [MASTER_PORT, DATA_PARALLEL_PORT]
    if deployment:
        ports = [DATA_PARALLEL_PORT if deployment.parallel.data > 1 else MASTER_PORT]
    places = [f"{head}:{port}" for port in ports]
    told = each(live, lambda m: [(where, m.subject.sight.reach(where)) for where in places])
    wrong = {
        _described(machine.name, where, answer): None
        for machine, answers in zip(live, told, strict=True)
        for where, answer in answers
        if answer != "refused"
    }
    needed = f"{' and '.join(places)} reached from every machine, and free"
    fix = "trust the other machines' addresses in the firewall; ss -ltnp on the head"
    if wrong:
        return Answer(False, "; ".join(wrong), needed, fix)
    return Answer(True, f"reached from {len(live)} machines, and free", needed)


def _described(name: str, where: str, answer: str | None) -> str:
    if answer == "open":
        return f"something listens on {where}"
    return f"{name} to {where}: {answer or 'not told'}"


CHECK = Check("engine-ports", "warning", look)
