"""A firewall between machines that share a replica."""

from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject

_SERVICES = ("firewalld", "ufw")


def look(subject: Subject) -> Answer | None:
    """HCCL and gloo take ports as they come, so the machines must reach all of one another's."""
    if not subject.is_one_of_several:
        return None
    needed = "all ports open between the machines of a replica"
    unknown = []
    for service in _SERVICES:
        ran = subject.sight.run("systemctl", "is-active", service)
        if ran.error:
            unknown.append(service)
        elif ran.output.strip() == "active":
            fix = f"systemctl stop {service}, or trust the other machines' addresses in it"
            return Answer(False, f"{service} is active", needed, fix)
    if len(unknown) == len(_SERVICES):
        return Answer(None, "systemctl does not answer", needed, "iptables -L")
    return Answer(True, "none active", needed)


CHECK = Check("firewall", "warning", look)
