"""How fast a start will read the weights."""

from tunan.ascend.probes.host import look_at_disks
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject

_SLOWEST = 1e9
_GB = 10**9


def look(subject: Subject) -> Answer | None:
    """Reads up to 256 MiB past the page cache: of one block of the checkpoint, else of the first
    NVMe disk itself, which only root may."""
    if subject.deployment is None:
        return _of_disk(subject)
    weights = (subject.checkpoint or {}).get("weights")
    if not isinstance(weights, int):
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
    return Answer(rate >= _SLOWEST, found, needed, "move the checkpoint to an NVMe disk")


def _of_disk(subject: Subject) -> Answer | None:
    disk = next((d.name for d in look_at_disks(subject.sight) if d.nvme), None)
    if disk is None:
        return None
    rate, needed = subject.sight.read_rate(f"/dev/{disk}"), "1 GB/s or more"
    if rate is not None:
        return Answer(rate >= _SLOWEST, f"{disk}: {rate / _GB:.1f} GB/s", needed, "lspci -vv")
    if subject.profile is None:
        return None
    return Answer(None, f"{disk} not timed: only root may read it", needed, "as root, or --config")


CHECK = Check("read-rate", "warning", look)
