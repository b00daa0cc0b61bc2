"""Huge pages set aside on the host: memory that nothing else can use."""

from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import GIB, Subject


def look(subject: Subject) -> Answer | None:
    """Neither the engine nor the loader takes pages that are set aside."""
    memory = subject.memory.value
    if memory is None or not memory.hugepages:
        return None
    unused = memory.hugepages_free * memory.hugepage_bytes
    found = f"{memory.hugepages} set aside, {unused / GIB:.1f} GiB of them unused"
    needed = "less than a tenth of the memory lying idle"
    return Answer(unused < memory.total / 10, found, needed, "sysctl vm.nr_hugepages=0")


CHECK = Check("hugepages", "warning", look)
