"""The RoCE ports of the NPUs, where several machines share a replica: up, with an address."""

from tunan.ascend.probes.hccn import parse_ip, parse_link
from tunan.doctor.finding import Answer, Check, Severity
from tunan.doctor.subject import Subject
from tunan.doctor.wording import counted, devices


def look(subject: Subject) -> Answer | None:
    """hccn_tool counts devices, not modules.

    Between the devices of one machine HCCL has other ways: there a port that is down is a warning,
    and none needs an address.
    """
    if not looks_at_ports(subject):
        return None
    alone = not subject.is_one_of_several
    numbers = range(len(subject.devices))
    links = {number: parse_link(hccn_text(subject, number, "-link")) for number in numbers}
    told = [number for number, link in links.items() if link.value is not None]
    down = [number for number in told if not links[number].value]
    asked = [] if alone else told
    bare = [n for n in asked if parse_ip(hccn_text(subject, n, "-ip")).value is None]
    needed = "every port up" if alone else "every port up and with an address"
    if wrong := [*_are(down, "down"), *_have(bare, "no address")]:
        fix = "plug the cable, or: hccn_tool -i N -ip -s address ADDRESS netmask MASK"
        severity: Severity = "warning" if alone else "error"
        return Answer(False, "; ".join(wrong), needed, fix, severity)
    if silent := [link.error for link in links.values() if link.value is None]:
        return Answer(None, silent[-1] or "", needed, "hccn_tool -i 0 -link -g")
    return Answer(True, f"{counted(len(subject.devices), 'port')} up", needed)


def looks_at_ports(subject: Subject) -> bool:
    """Whether the NPUs' ports matter here: always where several machines share a replica, else
    where there are several that hccn_tool tells of, as a 310P has none."""
    if not subject.wants_hardware or not subject.devices:
        return False
    if subject.is_one_of_several:
        return True
    several = len(subject.devices) > 1
    return several and parse_link(hccn_text(subject, 0, "-link")).value is not None


def _are(numbers: list[int], what: str) -> list[str]:
    return [f"{devices(numbers)} {'are' if len(numbers) > 1 else 'is'} {what}"] if numbers else []


def _have(numbers: list[int], what: str) -> list[str]:
    return [f"{devices(numbers)} {'have' if len(numbers) > 1 else 'has'} {what}"] if numbers else []


def hccn_text(subject: Subject, number: int, option: str) -> str:
    """What `hccn_tool -i NUMBER OPTION -g` printed, or why it printed nothing."""
    ran = subject.sight.run("hccn_tool", "-i", str(number), option, "-g")
    return ran.output or ran.error or ""


CHECK = Check("roce-link", "error", look)
