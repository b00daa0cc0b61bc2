"""NVMe disks, and how fast the checkpoint is read from its own."""

from tunan.ascend.probes.host import look_at_disks
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject
from tunan.doctor.wording import counted

_TB = 10**12


def look(subject: Subject) -> Answer | None:
    """Their sizes, against the profile where one is named."""
    disks = look_at_disks(subject.sight)
    nvme = [disk for disk in disks if disk.nvme]
    size = sum(disk.size for disk in nvme) / _TB
    found = f"{counted(len(nvme), 'NVMe disk')}, {size:.1f} TB"
    if not nvme:
        found = f"no NVMe disk ({', '.join(d.name for d in disks) or 'no disk seen'})"
    if not subject.profile:
        return Answer(bool(nvme), found, "NVMe for the checkpoints", "lsblk -d", "note")
    needed = f"{subject.profile.nvme_tb:g} TB of NVMe ({subject.asked.profile})"
    return Answer(size >= subject.profile.nvme_tb * 0.95, found, needed, "add NVMe disks")


CHECK = Check("storage", "warning", look)
