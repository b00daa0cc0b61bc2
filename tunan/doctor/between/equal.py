"""Whether something is the same on all machines."""

from collections.abc import Callable, Sequence

from tunan.doctor.finding import Answer
from tunan.doctor.fleet.machine import Machine
from tunan.doctor.subject import Subject

NEEDED = "the same on all machines"


def equal(
    machines: Sequence[Machine], told_by: Callable[[Subject], str | None], fix: str
) -> Answer:
    """`told_by` gives what is compared, None where a machine does not tell it."""
    told = {machine.name: told_by(machine.subject) for machine in machines}
    known = {value for value in told.values() if value is not None}
    silent = [name for name, value in told.items() if value is None]
    if len(known) > 1:
        found = "; ".join(f"{name}: {value}" for name, value in told.items() if value is not None)
        return Answer(False, found, NEEDED, fix)
    if silent:
        what = f"{next(iter(known))}, but " if known else ""
        return Answer(None, f"{what}not told by {', '.join(silent)}", NEEDED)
    return Answer(True, next(iter(known)), NEEDED)


def hardware(machines: Sequence[Machine]) -> bool:
    """Whether NPUs of theirs are to work together."""
    return any(machine.subject.wants_hardware for machine in machines)
