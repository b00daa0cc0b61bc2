"""Whether the NPUs' ports reach the address that watches over them."""

from tunan.ascend.probes.hccn import HEALTHY, parse_net_health
from tunan.doctor.checks.roce_link import hccn_text
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject
from tunan.doctor.wording import by_value, counted


def look(subject: Subject) -> Answer | None:
    """`hccn_tool -net_health`, where several machines share a replica."""
    if not subject.wants_hardware or not subject.is_one_of_several or not subject.devices:
        return None
    told = [
        parse_net_health(hccn_text(subject, number, "-net_health"))
        for number, _ in enumerate(subject.devices)
    ]
    needed = "Success on every port"
    bad = by_value({n: p.value for n, p in enumerate(told) if p.value and not _well(p.value)})
    if bad:
        fix = "check hccn_tool -i N -netdetect -g, the gateway and the switch"
        return Answer(False, bad, needed, fix)
    if any(probe.value is None for probe in told):
        error = next(probe.error for probe in told if probe.value is None)
        return Answer(None, error or "", needed, "hccn_tool -i 0 -net_health -g")
    return Answer(True, f"Success on {counted(len(told), 'port')}", needed)


def _well(told: str) -> bool:
    return told.lower() == HEALTHY


CHECK = Check("roce-health", "warning", look)
