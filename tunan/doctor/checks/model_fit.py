"""Whether weights, one full sequence's cache and the engine's own memory fit a device."""

from tunan.doctor.finding import Answer, Check
from tunan.doctor.fit import RESERVE, Need, need_of
from tunan.doctor.subject import GIB, Subject


def look(subject: Subject) -> Answer | None:
    """The least that a start needs; more memory is more requests at once."""
    if subject.deployment is None or not subject.replicas_here:
        return None
    sizes = subject.checkpoint or {}
    if "weights" not in sizes:
        error = str(sizes.get("error") or "the checkpoint is not here")
        return Answer(False, error, "a checkpoint", "tunan convert", "error")
    need = need_of(subject.deployment, sizes)
    room = _room(subject)
    needed = f"{need.total / GIB:.1f} GiB a rank: {_described(need)}"
    if room is None:
        return Answer(None, "the memory of the devices is not known", needed, "npu-smi info")
    fix = "a larger parallel.tensor, a smaller model.max_model_len, or --quantize w8a8"
    return Answer(room >= need.total, f"{room / GIB:.1f} GiB a rank", needed, fix)


def _room(subject: Subject) -> float | None:
    memory = subject.deployment.memory if subject.deployment else None
    part = memory.utilization if memory else 0.9
    if subject.emulated:
        return subject.emulated.memory * part if subject.emulated.memory else None
    if subject.wants_npu:
        sizes = [d.memory_total_mb for d in subject.wanted_devices if d.memory_total_mb]
        return min(sizes) * (1 << 20) * part if sizes else None
    host = subject.memory.value
    free = host.available if host else None
    engines = subject.ranks_here * subject.replicas_here
    return free * part / engines if free is not None else None


def _described(need: Need) -> str:
    return (
        f"weights {need.weights / GIB:.1f}, cache of {need.tokens} tokens {need.cache / GIB:.1f}, "
        f"activations, graphs and buffers about {RESERVE / GIB:.0f}"
    )


CHECK = Check("model-fit", "error", look)
