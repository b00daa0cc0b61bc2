"""The kind of chip: known, supported, and the one that the target names."""

from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject
from tunan.targets import family_of


def look(subject: Subject) -> Answer | None:
    """The name alone can mislead: a 910A may call itself 910B."""
    identity = subject.identity
    if not subject.wants_hardware or identity is None:
        return None
    needed = f"a chip that vllm-ascend supports, for target {subject.target}"
    chip = identity.chip
    if chip is None:
        passed = True if identity.family == "A2" and subject.family == "ascend910b" else None
        return Answer(passed, identity.why, needed, "npu-smi info -m")
    found = f"{chip.name} ({identity.why})"
    if not chip.is_served:
        return Answer(False, found, needed, chip.instead)
    if chip.target and family_of(chip.target) != subject.family:
        return Answer(False, found, needed, f"--target {chip.target}")
    if chip.vllm_ascend.value == "experimental":
        found += "; vllm-ascend calls it experimental"
    return Answer(True, found, needed)


CHECK = Check("chip", "error", look)
