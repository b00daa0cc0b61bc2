"""What the driver says of the health of each device."""

from tunan.ascend.probes.npus import look_at_health
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject
from tunan.doctor.wording import counted

_BAD = ("alarm", "critical")


def look(subject: Subject) -> Answer | None:
    """A warning lets the device work on; an alarm has a code to look up."""
    if not subject.shows_hardware:
        return None
    ill = [device for device in subject.devices if (device.health or "").upper() != "OK"]
    needed = "OK on every device"
    if not ill:
        return Answer(True, f"OK on {counted(len(subject.devices), 'device')}", needed)
    told: list[str] = []
    for device in ill:
        codes = look_at_health(subject.sight, device).value
        listed = f" ({', '.join(codes.codes)})" if codes and codes.codes else ""
        told.append(f"{device.describe()} {device.health or 'not told'}{listed}")
    words = {(device.health or "").lower() for device in ill}
    fix = f"npu-smi info -t health -i {ill[0].npu} -c {ill[0].chip or 0}, and look the code up"
    if words & set(_BAD):
        return Answer(False, "; ".join(told), needed, fix)
    return Answer(
        False if words - {"", "unknown"} else None, "; ".join(told), needed, fix, "warning"
    )


CHECK = Check("npu-health", "error", look)
