"""Temperature and power of the NPUs."""

from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject

# Of the alert TunanNpuHot; a test compares. The driver has limits of its own (see npu-health).
HOT_C = 85


def look(subject: Subject) -> Answer | None:
    """The hottest device, and the watts of all that tell."""
    known = [d for d in subject.devices if d.temperature_c is not None]
    if not subject.shows_hardware or not known:
        return None
    hottest = max(known, key=lambda d: d.temperature_c or 0.0)
    watts = [d.power_w for d in known if d.power_w is not None]
    power = f", {sum(watts):.0f} W in all" if watts else ""
    found = f"{hottest.describe()} is the hottest with {hottest.temperature_c:.0f} °C{power}"
    fix = f"npu-smi info -t temp -i {hottest.npu} # see to fans and air intake"
    passed = (hottest.temperature_c or 0.0) <= HOT_C
    return Answer(passed, found, f"at most {HOT_C} °C", fix)


CHECK = Check("temperature", "warning", look)
