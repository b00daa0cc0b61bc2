"""NNAL: libatb.so, from which the fused transformer operators come."""

from tunan.doctor.commands import install
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import SET_ENV_ATB, Subject

_ROOT = "/usr/local/Ascend/nnal/atb"


def look(subject: Subject) -> Answer | None:
    """Where set_env.sh says, else in the usual folder."""
    if not subject.wants_cann:
        return None
    home = subject.sight.variable("ATB_HOME_PATH")
    needed = f"NNAL {subject.release.cann}"
    if home and subject.sight.exists(f"{home}/lib/libatb.so"):
        return Answer(True, home, needed)
    if home:
        return Answer(
            False, f"ATB_HOME_PATH is {home}, which has no lib/libatb.so", needed, SET_ENV_ATB
        )
    if subject.sight.exists(f"{_ROOT}/set_env.sh"):
        return Answer(False, f"{_ROOT}, but ATB_HOME_PATH is not set", needed, SET_ENV_ATB)
    return Answer(False, f"no {_ROOT}", needed, install(subject))


CHECK = Check("nnal", "error", look)
