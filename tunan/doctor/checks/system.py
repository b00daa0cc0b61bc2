"""The operating system."""

import shlex

from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject

# Those of tunan/install/packages.yaml; a test compares.
KNOWN = ("ubuntu", "debian", "openEuler", "kylin")


def look(subject: Subject) -> Answer | None:
    """By /etc/os-release. On a CPU any will do; drivers are made for some."""
    fields = _fields(subject.sight.read("/etc/os-release") or "")
    kernel = subject.sight.system("kernel") or "unknown"
    name = fields.get("PRETTY_NAME") or fields.get("ID")
    needed = "one that tunan install has steps for: " + ", ".join(KNOWN)
    if not subject.wants_hardware:
        needed = "Linux"
    found = f"{name or 'no /etc/os-release'}, Linux {kernel}"
    if name is None:
        return Answer(None, found, needed, "uname -a")
    passed = not subject.wants_hardware or fields.get("ID") in KNOWN
    fix = "the steps of tunan install --os openeuler (or ubuntu), adapted by hand"
    return Answer(passed, found, needed, fix)


def _fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            fields.setdefault(key.strip(), _unquoted(value.strip()))
    return fields


def _unquoted(value: str) -> str:
    try:
        return " ".join(shlex.split(value))
    except ValueError:
        return value


CHECK = Check("system", "note", look)
