"""The kind of chip: known, supported, and the one that the target names."""

from tunan.ascend.catalogue import Chip
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject
from tunan.targets import family_of


def look(subject: Subject) -> Answer | None:
    """The name alone can mislead: a 910A may call itself 910B."""
    identity = subject.identity
    if identity is None or subject.emulated or subject.named_target == "cpu":
        return None
    chip = identity.chip
    needed = "a chip that vllm-ascend supports"
    if subject.wants_npu:
        needed += f", for target {subject.target}"
    if chip is None:
        passed = True if identity.family == "A2" and subject.family == "ascend910b" else None
        return Answer(passed, identity.why, needed, "npu-smi info -m")
    found = f"{chip.name} ({identity.why})"
    if not chip.is_served:
        return Answer(False, found, needed, _instead(chip))
    if chip.target and family_of(chip.target) != subject.family:
        return Answer(False, found, needed, f"tunan doctor --target {chip.target}")
    if chip.vllm_ascend.value == "experimental":
        found += "; vllm-ascend calls it experimental"
    return Answer(True, found, needed)


def _instead(chip: Chip) -> str | None:
    served_by_cpus = "--target cpu" in (chip.instead or "")
    return f"tunan doctor --target cpu # {chip.instead}" if served_by_cpus else chip.instead


CHECK = Check("chip", "error", look)
