"""How many files and sockets a process may have open."""

from tunan.ascend.probes.numbers import whole
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject

_NEEDED = 4096


def look(subject: Subject) -> Answer | None:
    """Every stream is two sockets in the front door."""
    limit = whole(subject.sight.system("open files") or "")
    if limit is None:
        return None  # no limit
    return Answer(limit >= _NEEDED, str(limit), f"{_NEEDED} or more", "ulimit -n 65536")


CHECK = Check("open-files", "warning", look)
