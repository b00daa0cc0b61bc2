"""The files through which a process reaches NPUs."""

from tunan.doctor.commands import install
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject
from tunan.doctor.wording import counted

_OTHERS = ("davinci_manager", "devmm_svm", "hisi_hdc")


def look(subject: Subject) -> Answer | None:
    """In a container they are there only if it was started with them."""
    if not subject.wants_hardware:
        return None
    there = subject.sight.names("/dev")
    missing = [f"/dev/{name}" for name in _OTHERS if name not in there]
    if not subject.device_files:
        # One a die, as many as npu-smi shows, numbered as their places are.
        missing = [*(f"/dev/davinci{n}" for n in range(max(1, len(subject.devices)))), *missing]
    needed = "/dev/davinci0... and " + ", ".join(f"/dev/{name}" for name in _OTHERS)
    found = counted(len(subject.device_files), "device") + (
        f", no {', '.join(missing)}" if missing else ""
    )
    in_container = "docker run " + " ".join(f"--device {path}" for path in missing)
    fix = in_container if subject.in_container else install(subject)
    return Answer(not missing, found, needed, fix)


CHECK = Check("device-files", "error", look)
