"""Whether CANN's set_env.sh was sourced in this shell."""

from tunan.doctor.commands import set_env
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject

_NEEDED = ("ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "LD_LIBRARY_PATH")


def look(subject: Subject) -> Answer | None:
    """Without it no library of CANN is found."""
    if not subject.wants_cann:
        return None
    missing = [name for name in _NEEDED if not subject.sight.variable(name)]
    found = f"{', '.join(missing)} not set" if missing else "set"
    return Answer(not missing, found, "the variables of CANN's set_env.sh", set_env(subject))


CHECK = Check("environment", "error", look)
