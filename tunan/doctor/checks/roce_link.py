"""The RoCE ports of the NPUs, where several machines share a replica: up, with an address."""

from tunan.ascend.probes.hccn import parse_ip, parse_link
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject


def look(subject: Subject) -> Answer | None:
    """hccn_tool counts devices, not modules."""
    if not subject.wants_hardware or not subject.is_one_of_several or not subject.devices:
        return None
    needed = "every port up and with an address"
    wrong: list[str] = []
    silent: str | None = None
    for number, _ in enumerate(subject.devices):
        link = parse_link(hccn_text(subject, number, "-link"))
        address = parse_ip(hccn_text(subject, number, "-ip"))
        if link.value is None:
            silent = link.error
        elif not link.value:
            wrong.append(f"device {number} is down")
        if link.value is not None and address.value is None:
            wrong.append(f"device {number} has no address")
    if wrong:
        fix = "plug the cable, or: hccn_tool -i N -ip -s address ADDRESS netmask MASK"
        return Answer(False, "; ".join(wrong), needed, fix)
    if silent:
        return Answer(None, silent, needed, "hccn_tool -i 0 -link -g")
    return Answer(True, f"{len(subject.devices)} ports up", needed)


def hccn_text(subject: Subject, number: int, option: str) -> str:
    """What `hccn_tool -i NUMBER OPTION -g` printed, or why it printed nothing."""
    ran = subject.sight.run("hccn_tool", "-i", str(number), option, "-g")
    return ran.output or ran.error or ""


CHECK = Check("roce-link", "error", look)
