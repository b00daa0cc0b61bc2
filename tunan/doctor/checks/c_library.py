"""glibc: the wheels are built for one version and newer."""

from tunan.ascend.probes.versions import is_at_least
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject

# The tags of the published wheels: vllm_ascend 0.23.0 is manylinux_2_34, torch_npu manylinux_2_28.
_FOR_NPU = "2.34"
_FOR_CPU = "2.28"


def look(subject: Subject) -> Answer | None:
    """An older one cannot load them; a container with a newer one can be used instead."""
    lowest = _FOR_NPU if subject.wants_npu else _FOR_CPU
    found = subject.sight.system("glibc")
    kernel = subject.sight.system("kernel") or "unknown"
    needed = f"glibc {lowest} or newer"
    if not found:
        return Answer(None, "the C library does not tell its version", needed, "ldd --version")
    fix = "use the vllm-ascend container image, or a newer system"
    return Answer(is_at_least(found, lowest), f"glibc {found}, Linux {kernel}", needed, fix)


CHECK = Check("c-library", "error", look)
