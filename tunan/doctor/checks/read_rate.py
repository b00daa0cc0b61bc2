"""How fast a start will read the weights."""

from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject

_NEEDED = 1e9
_GB = 10**9


def look(subject: Subject) -> Answer | None:
    """Reads up to 256 MiB of one block of the checkpoint past the page cache."""
    weights = (subject.checkpoint or {}).get("weights")
    if subject.deployment is None or not isinstance(weights, int):
        return None
    path = str(subject.deployment.model.path)
    block = next((n for n in subject.sight.names(path) if n.endswith((".safetensors", ".bin"))), "")
    rate = subject.sight.read_rate(f"{path}/{block}") if block else None
    needed = "1 GB/s or more"
    if rate is None:
        found = "not timed: the blocks are small, or this file system reads through the page cache"
        return Answer(None, found, needed)
    seconds = weights / rate
    found = f"{rate / _GB:.1f} GB/s: {weights / _GB:.1f} GB take {seconds:.0f} s"
    return Answer(rate >= _NEEDED, found, needed, "move the checkpoint to an NVMe disk")


CHECK = Check("read-rate", "warning", look)
