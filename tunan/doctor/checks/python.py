"""The Python that runs this."""

from tunan.ascend.probes.versions import is_at_least
from tunan.doctor.commands import install
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject

_OURS = ("3.11", "3.13")


def look(subject: Subject) -> Answer | None:
    """Tunan's own range, and on NPUs that of the vllm-ascend release as well."""
    found = subject.sight.system("python")
    lowest, below = _OURS
    if subject.wants_npu and (subject.emulated or subject.wants_cann):
        theirs = subject.release.python
        lowest = max(lowest, theirs[0], key=_parts)
        below = min(below, theirs[1], key=_parts)
    needed = f"{lowest} or newer, below {below}"
    fix = install(subject) if subject.wants_cann else "make setup PYTHON=python3.11"
    if not found:
        return Answer(None, "unknown", needed, "python3 --version")
    passed = is_at_least(found, lowest) and not is_at_least(found, below)
    return Answer(passed, f"Python {found}", needed, fix)


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


CHECK = Check("python", "error", look)
