"""Errors of the NPUs' memory that could not be corrected."""

from tunan.ascend.probes.npus import look_at_ecc
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject


def look(subject: Subject) -> Answer | None:
    """Counted since the driver was loaded; one ends the process that used the page."""
    if not subject.wants_hardware or not subject.devices:
        return None
    told = {device: look_at_ecc(subject.sight, device) for device in subject.devices}
    counts = {device: p.value.double_bit if p.value else None for device, p in told.items()}
    needed = "no uncorrectable (double-bit) error"
    bad = [f"{device.describe()}: {count}" for device, count in counts.items() if count]
    if bad:
        fix = "npu-smi info -t ecc -i N again later; a count that grows is a card to replace"
        return Answer(False, "; ".join(bad), needed, fix)
    if silent := [device for device, count in counts.items() if count is None]:
        error = told[silent[0]].error or "not told"
        return Answer(
            None,
            f"none on {len(counts) - len(silent)} of {len(counts)} devices; "
            f"{silent[0].describe()}: {error}",
            needed,
            f"npu-smi info -t ecc -i {silent[0].npu}",
        )
    return Answer(True, f"none on {len(counts)} devices", needed)


CHECK = Check("ecc", "warning", look)
