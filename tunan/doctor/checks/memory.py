"""The host's memory."""

from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import GIB, Subject

_GB = 10**9
# A machine is sold with 512 GB; the firmware and the kernel keep a little of it.
_TOLERANCE = 0.95


def look(subject: Subject) -> Answer | None:
    """As much as the profile asks for; on NPUs without one, room for the pages of the weights."""
    memory = subject.memory.value
    if memory is None:
        return Answer(None, subject.memory.error or "", "a readable /proc/meminfo", "free -g")
    available = "" if memory.available is None else f", {memory.available / GIB:.0f} GiB available"
    found = f"{memory.total / GIB:.0f} GiB{available}"
    if subject.profile:
        asked = subject.profile.memory_gb
        passed = memory.total >= asked * _GB * _TOLERANCE
        return Answer(passed, found, f"{asked} GB ({subject.asked.profile})", "add memory")
    weights = (subject.checkpoint or {}).get("weights")
    if not subject.wants_npu or not isinstance(weights, int):
        return Answer(True, found, "any amount; compare with --profile")
    return Answer(
        memory.total >= weights,
        found,
        f"{weights / GIB:.0f} GiB to keep the weights in the page cache over a restart",
        "add memory, or expect each start to read the disk again",
    )


CHECK = Check("memory", "warning", look)
