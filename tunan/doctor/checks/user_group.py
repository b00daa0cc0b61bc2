"""The user may open the device files."""

from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject

_GROUP = "HwHiAiUser"


def look(subject: Subject) -> Answer | None:
    """root may; another user has to be in the driver's group."""
    if not subject.wants_hardware:
        return None
    user = subject.sight.system("user")
    groups = (subject.sight.system("groups") or "").split()
    needed = f"root, or a member of {_GROUP}"
    if user is None:
        return Answer(None, "unknown user", needed, "id")
    if user == "0" or _GROUP in groups:
        return Answer(True, "root" if user == "0" else f"member of {_GROUP}", needed)
    fix = f"usermod -aG {_GROUP} $USER, then log in again"
    return Answer(False, f"user {user}, not in {_GROUP}", needed, fix)


CHECK = Check("user-group", "error", look)
