"""How far the machines' clocks are apart."""

from collections.abc import Sequence

from tunan.doctor.finding import Answer, Check
from tunan.doctor.fleet.machine import Machine

_MOST = 1.0


def look(machines: Sequence[Machine]) -> Answer | None:
    """Logs of several ranks are put in order by their times: the first to fail is the cause."""
    live = [machine for machine in machines if machine.live]
    if not live:
        return None
    needed, fix = f"within {_MOST:g} s", "systemctl enable --now chronyd, on every machine"
    known = [(m.clock[0], m.clock[1], m.name) for m in live if m.clock]
    if len(known) < len(live):
        return Answer(None, "a clock could not be asked", needed, fix)
    (first, first_error, slow), (last, last_error, fast) = min(known), max(known)
    apart, error = last - first, first_error + last_error
    found = f"{apart:.2f} s apart, give or take {error:.2f} s"
    if apart - error > _MOST:
        return Answer(False, f"{fast} is ahead of {slow}: {found}", needed, fix)
    return Answer(True if apart + error <= _MOST else None, found, needed, fix)


CHECK = Check("clock-skew", "warning", look)
