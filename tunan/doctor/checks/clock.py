"""The clock, where several machines have to agree on it."""

from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject


def look(subject: Subject) -> Answer | None:
    """Logs and time-outs of several machines are compared by their clocks."""
    if not subject.is_one_of_several:
        return None
    ran = subject.sight.run("timedatectl", "show", "-p", "NTPSynchronized", "--value")
    needed, fix = "synchronised", "systemctl enable --now chronyd"
    said = ran.output.strip()
    if ran.error or said not in ("yes", "no"):
        return Answer(None, ran.error or "timedatectl does not say", needed, fix)
    return Answer(
        said == "yes", "synchronised" if said == "yes" else "not synchronised", needed, fix
    )


CHECK = Check("clock", "warning", look)
