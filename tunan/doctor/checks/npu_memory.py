"""Free memory of the NPUs, and who holds the rest."""

from tunan.ascend.probes.npu import NpuDevice
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject
from tunan.doctor.wording import counted

_DEFAULT_UTILIZATION = 0.9


def look(subject: Subject) -> Answer | None:
    """The engine starts only if `memory.utilization` of the whole is free."""
    devices = [d for d in subject.wanted_devices if d.memory_free_mb is not None]
    if not subject.wants_hardware or not devices:
        return None
    memory = subject.deployment.memory if subject.deployment else None
    part = memory.utilization if memory else _DEFAULT_UTILIZATION
    needed = f"{part:.0%} of each device free"
    full = [d for d in devices if (d.memory_free_mb or 0) < part * (d.memory_total_mb or 0)]
    if not full:
        least = min(d.memory_free_mb or 0 for d in devices)
        return Answer(
            True, f"at least {least} MB free on {counted(len(devices), 'device')}", needed
        )
    told = "; ".join(_told(subject, device) for device in full)
    return Answer(False, told, needed, _fix(subject, full))


def _told(subject: Subject, device: NpuDevice) -> str:
    head = f"{device.describe()}: {device.memory_free_mb} of {device.memory_total_mb} MB free"
    held = subject.npus.value.processes_of(device) if subject.npus.value else None
    if held is None:
        return f"{head}, by whom is not told"
    if not held:
        return f"{head}, held by a process that is not seen from here (another container?)"
    names = [f"{p.pid}{f' {p.name}' if p.name else ''} ({p.memory_mb} MB)" for p in held]
    return f"{head}, held by {', '.join(names)}"


def _fix(subject: Subject, full: list[NpuDevice]) -> str:
    report = subject.npus.value
    pids = {p.pid for d in full for p in (report.processes_of(d) or () if report else ())}
    if pids and not subject.in_container:
        return f"kill {' '.join(str(pid) for pid in sorted(pids))}, if they are leftovers"
    return f"on the host: npu-smi info -t proc-mem -i {full[0].npu}, and end what is left over"


CHECK = Check("npu-memory", "error", look)
