"""The CPU's frequency governor."""

from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject

_FILE = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"


def look(subject: Subject) -> Answer | None:
    """Does not apply where the kernel cannot change the frequency."""
    found = (subject.sight.read(_FILE) or "").strip()
    if not found:
        return None
    fix = "cpupower frequency-set -g performance"
    return Answer(found == "performance", found, "performance", fix)


CHECK = Check("governor", "warning", look)
