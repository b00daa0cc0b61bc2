"""How the devices of a replica reach one another."""

from tunan.ascend.probes.npus import look_at_topology
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject

_FAST = ("HCCS", "HCCS_SW", "SIO", "UB")


def look(subject: Subject) -> Answer | None:
    """Over PCIe alone tensor parallelism waits for its sums."""
    if not subject.wants_hardware or len(subject.devices) < 2:
        return None
    probe = look_at_topology(subject.sight)
    needed = f"{', '.join(_FAST)} between the devices of a replica"
    if probe.value is None:
        return Answer(None, probe.error or "", needed, "npu-smi info -t topo")
    wanted = [n for n, d in enumerate(subject.devices) if d in subject.wanted_devices]
    links = {
        kind
        for row in wanted
        for column, kind in probe.value.links.get(row, {}).items()
        if column in wanted and kind not in ("X", "NA")
    }
    if not links:
        return Answer(None if len(wanted) > 1 else True, "one device, or no link told", needed)
    slow = sorted(links - set(_FAST))
    fix = "choose devices that share HCCS: parallel.devices"
    return Answer(not slow, ", ".join(sorted(links)), needed, fix)


CHECK = Check("topology", "warning", look)
