"""Errors of the NPUs' memory that could not be corrected."""

from tunan.ascend.probes.npus import look_at_ecc
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject


def look(subject: Subject) -> Answer | None:
    """Counted since the driver was loaded; one ends the process that used the page."""
    if not subject.wants_hardware or not subject.devices:
        return None
    counts = {device: look_at_ecc(subject.sight, device) for device in subject.devices}
    known = {d: p.value.double_bit for d, p in counts.items() if p.value}
    needed = "no uncorrectable (double-bit) error"
    bad = [f"{device.describe()}: {count}" for device, count in known.items() if count]
    if bad:
        fix = "npu-smi info -t ecc -i N again later; a count that grows is a card to replace"
        return Answer(False, "; ".join(bad), needed, fix)
    if not any(count is not None for count in known.values()):
        error = next(iter(counts.values())).error or "not told"
        return Answer(None, error, needed, "npu-smi info -t ecc -i 0")
    return Answer(True, f"none on {len(known)} devices", needed)


CHECK = Check("ecc", "warning", look)
