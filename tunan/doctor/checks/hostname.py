"""The machine's own name: ranks look it up to find one another."""

from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject


def look(subject: Subject) -> Answer | None:
    """Of several machines none may call itself 127.0.0.1: the others would be told that address."""
    name = subject.sight.system("hostname") or ""
    address = subject.sight.address(name) if name else None
    several = subject.is_one_of_several
    needed = "an address the other machines reach" if several else "an address"
    fix = f'echo "ADDRESS {name}" >> /etc/hosts'
    if address is None:
        return Answer(False, f"{name or 'no name'} leads nowhere", needed, fix)
    loopback = address.startswith("127.") or address == "::1"
    severity = "error" if several else "warning"
    passed = not (several and loopback)
    return Answer(passed, f"{name} is {address}", needed, fix, severity)  # type: ignore[arg-type]


CHECK = Check("hostname", "warning", look)
