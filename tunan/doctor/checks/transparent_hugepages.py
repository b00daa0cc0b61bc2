"""Transparent huge pages: packed weights and caches are large."""

from tunan.ascend.probes.host import chosen
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject

_FILE = "/sys/kernel/mm/transparent_hugepage/enabled"


def look(subject: Subject) -> Answer | None:
    """Does not apply where the kernel has none."""
    found = chosen(subject.sight.read(_FILE))
    if found is None:
        return None
    return Answer(found != "never", found, "madvise or always", f"echo madvise > {_FILE}")


CHECK = Check("transparent-hugepages", "warning", look)
