"""What a container needs of the host beside the device files."""

from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import DRIVER, Subject

# As vllm-ascend's installation page has it; hccn.conf where several machines share a replica.
_NEEDED = (
    "/usr/local/dcmi",
    "/usr/local/bin/npu-smi",
    f"{DRIVER}/lib64",
    f"{DRIVER}/version.info",
    "/etc/ascend_install.info",
)
_FOR_SEVERAL = ("/etc/hccn.conf", f"{DRIVER}/tools/hccn_tool")


def look(subject: Subject) -> Answer | None:
    """Does not apply outside of containers."""
    if not subject.wants_hardware or not subject.in_container:
        return None
    wanted = _NEEDED + (_FOR_SEVERAL if subject.is_one_of_several else ())
    missing = [path for path in wanted if not subject.sight.exists(path)]
    fix = "docker run " + " ".join(f"-v {path}:{path}:ro" for path in missing)
    found = f"no {', '.join(missing)}" if missing else "all mounted"
    return Answer(not missing, found, ", ".join(wanted), fix)


CHECK = Check("container-mounts", "error", look)
