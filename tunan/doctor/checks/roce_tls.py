"""The TLS switch of the NPUs' ports: HCCL fails where two differ."""

from tunan.ascend.probes.hccn import parse_tls
from tunan.doctor.checks.roce_link import hccn_text, looks_at_ports
from tunan.doctor.finding import Answer, Check, Severity
from tunan.doctor.subject import Subject
from tunan.doctor.wording import devices


def look(subject: Subject) -> Answer | None:
    """Compares those of this machine; the other machines' have to be the same."""
    if not looks_at_ports(subject):
        return None
    switches = [
        parse_tls(hccn_text(subject, number, "-tls")) for number, _ in enumerate(subject.devices)
    ]
    known = {probe.value for probe in switches if probe.value is not None}
    needed = "the same on all devices of all machines"
    fix = "for i in $(seq 0 7); do hccn_tool -i $i -tls -s enable 0; done, on every machine"
    if not known:
        return Answer(None, switches[0].error or "", needed, "hccn_tool -i 0 -tls -g")
    if len(known) > 1:
        on = devices(n for n, probe in enumerate(switches) if probe.value)
        # HCCL takes the network between machines; inside of one it may do without.
        severity: Severity = "error" if subject.is_one_of_several else "warning"
        return Answer(False, f"on for {on} only", needed, fix, severity)
    return Answer(True, "on for all here" if known == {True} else "off for all here", needed)


CHECK = Check("roce-tls", "error", look)
