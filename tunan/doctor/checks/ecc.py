"""Errors of the NPUs' memory that could not be corrected."""

from tunan.ascend.probes.npus import look_at_ecc
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject
from tunan.doctor.wording import counted


def look(subject: Subject) -> Answer | None:
    """What was computed with such a page is wrong; the same weight as the alert's."""
    if not subject.shows_hardware:
        return None
    told = {device: look_at_ecc(subject.sight, device) for device in subject.devices}
    counts = {device: p.value.double_bit if p.value else None for device, p in told.items()}
    needed = "no uncorrectable (double-bit) error"
    bad = [f"{device.describe()}: {count}" for device, count in counts.items() if count]
    if bad:
        npus = dict.fromkeys(device.npu for device, count in counts.items() if count)
        clear = "; ".join(f"npu-smi clear -t ecc-info -i {npu}" for npu in npus)
        fix = f"{clear} # once nothing runs on it; a count that comes back is a card to replace"
        return Answer(False, "; ".join(bad), needed, fix)
    if silent := [device for device, count in counts.items() if count is None]:
        error = told[silent[0]].error or "not told"
        return Answer(
            None,
            f"none on {len(counts) - len(silent)} of {counted(len(counts), 'device')}; "
            f"{silent[0].describe()}: {error}",
            needed,
            f"npu-smi info -t ecc -i {silent[0].npu}",
        )
    return Answer(True, f"none on {counted(len(counts), 'device')}", needed)


CHECK = Check("ecc", "error", look)
