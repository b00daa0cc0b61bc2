"""As many NPUs as the deployment takes."""

from tunan.doctor.commands import install
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject
from tunan.doctor.wording import counted


def look(subject: Subject) -> Answer | None:
    """Counts dies, each of which is a device to the engine."""
    if not subject.wants_npu:
        return _profile(subject, 0) if subject.profile else _silent(subject)
    there = subject.emulated.count if subject.emulated else len(subject.devices)
    if not there:
        fix = "npu-smi info" if subject.has_npu_tool else install(subject)
        return Answer(False, subject.npus.error or "no NPU", "at least one NPU", fix)
    if subject.profile and not subject.emulated:
        return _profile(subject, there)
    look_again = "" if subject.emulated else "npu-smi info -l # "
    if absent := _absent(subject, there):
        found = f"{counted(there, 'device')}, no {', '.join(map(str, absent))}"
        fix = f"{look_again}change parallel.devices"
        return Answer(False, found, "the devices of parallel.devices", fix)
    replicas = subject.replicas_here
    wanted = subject.ranks_here * replicas
    found = counted(there, "device")
    needed = f"{wanted} for {replicas} x {subject.ranks_here} ranks" if wanted > 1 else "1 device"
    fix = (
        f"{look_again}lower parallel.tensor, parallel.pipeline or the number of replicas, "
        "or add nodes"
    )
    return Answer(there >= wanted, found, needed, fix)


def _absent(subject: Subject, there: int) -> list[int]:
    named = subject.deployment.parallel.devices if subject.deployment else None
    return [number for number in named or () if number >= there]


def _silent(subject: Subject) -> Answer | None:
    """A machine whose NPUs do not answer must not pass for one that has none."""
    if subject.devices or not subject.has_npu_tool:
        return None
    found = subject.npus.error or "no NPU"
    fix = "tunan doctor --target ascend910b3 # or the chip it should have"
    needed = "an npu-smi that answers, or --target cpu to do without NPUs"
    # Only who asked for the CPU, or has a table without a row, can do without what fails.
    stops = subject.named_target is None and subject.npus_fail
    return Answer(False, found, needed, fix, "error" if stops else "warning")


def _profile(subject: Subject, there: int) -> Answer | None:
    profile = subject.profile
    if profile is None:
        return None
    sizes = [d.memory_total_mb for d in subject.devices if d.memory_total_mb]
    smallest = min(sizes, default=0) / 1024
    found = f"{counted(there, 'device')}, {smallest:.0f} GiB each" if there else "no NPU"
    needed = f"{profile.npus} with {profile.npu_memory_gib} GiB ({subject.asked.profile})"
    # A 910A tells 32768 MB in one place and 31129 in another: a little less is the same size.
    passed = there >= profile.npus and smallest >= profile.npu_memory_gib * 0.94
    return Answer(passed, found, needed, "use a machine with more NPUs")


CHECK = Check("npu-count", "error", look)
