"""The CPUs: a model that is known, and instructions that the kernels use."""

from tunan.ascend.catalogue import Profile
from tunan.ascend.probes.lscpu import Processor
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject

_NEEDED = {"aarch64": "asimddp", "x86_64": "avx2"}


def look(subject: Subject) -> Answer | None:
    """Without them the CPU kernels run their scalar code, which is for tests."""
    processor = subject.processor.value
    needed = "an aarch64 (Kunpeng 920) or x86-64 processor with NEON dot products or AVX2"
    if processor is None:
        return Answer(None, subject.processor.error or "", needed, "lscpu")
    if subject.profile:
        return _against_profile(processor, subject.profile, subject.asked.profile or "")
    flag = _NEEDED.get(processor.architecture or "")
    if flag is None:
        return Answer(False, _described(processor), needed, "use another machine", "error")
    if not processor.flags:
        return Answer(None, f"{_described(processor)}, no flags told", needed, "lscpu")
    passed = flag in processor.flags
    return Answer(passed, _described(processor), needed, "use another machine")


def _against_profile(processor: Processor, profile: Profile, name: str) -> Answer:
    needed = f"{profile.sockets} x {profile.cpu} ({name})"
    fix = "use a larger machine"
    if processor.is_kunpeng and processor.sockets is None:
        return Answer(None, f"{_described(processor)}, sockets not told", needed, fix)
    passed = processor.is_kunpeng and (processor.sockets or 0) >= profile.sockets
    return Answer(passed, _described(processor), needed, fix)


def _described(processor: Processor) -> str:
    parts = [processor.model or "unknown model", processor.architecture or "unknown architecture"]
    if processor.sockets and processor.cores_per_socket:
        parts.append(f"{processor.sockets} x {processor.cores_per_socket} cores")
    elif processor.cpus:
        parts.append(f"{processor.cpus} CPUs")
    wide = [f for f in ("sve", "i8mm", "bf16", "avx512f", "amx_int8") if f in processor.flags]
    return ", ".join(parts) + (f" ({' '.join(wide)})" if wide else "")


CHECK = Check("processor", "warning", look)
