"""Shared memory (/dev/shm), through which ranks hand requests to one another."""

from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import GIB, Subject


def look(subject: Subject) -> Answer | None:
    """A container has 64 MiB unless it is started with more."""
    space = subject.sight.disk("/dev/shm")  # noqa: S108
    needed = "1 GiB"
    fix = "docker run --shm-size=1g ..., or: mount -o remount,size=1G /dev/shm"
    if space is None:
        return Answer(None, "there is no /dev/shm", needed, fix)
    return Answer(space[0] >= GIB, f"{space[0] / GIB:.2f} GiB", needed, fix)


CHECK = Check("shared-memory", "warning", look)
