"""The libraries that torch_npu loads can be found."""

from tunan.doctor.commands import set_env
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import DRIVER, Subject

_FROM_PATH = ("libascendcl.so", "libhccl.so", "libopapi.so")
_OF_DRIVER = "libascend_hal.so"
_DRIVER_FOLDERS = (f"{DRIVER}/lib64/driver", f"{DRIVER}/lib64/common", f"{DRIVER}/lib64")


def look(subject: Subject) -> Answer | None:
    """Looks into every folder of LD_LIBRARY_PATH; the driver's own are in its folder as well."""
    path = subject.sight.variable("LD_LIBRARY_PATH")
    if not subject.wants_cann or not path:
        return None
    folders = [folder for folder in path.split(":") if folder]
    missing = [name for name in _FROM_PATH if not _found(subject, name, folders)]
    if not _found(subject, _OF_DRIVER, [*folders, *_DRIVER_FOLDERS]):
        missing.append(_OF_DRIVER)
    needed = f"{', '.join((*_FROM_PATH, _OF_DRIVER))} in LD_LIBRARY_PATH"
    found = f"no {', '.join(missing)}" if missing else f"all, in {len(folders)} folders"
    mount = f"docker run -v {DRIVER}/lib64:{DRIVER}/lib64:ro ..."
    fix = mount if missing == [_OF_DRIVER] and subject.in_container else set_env(subject)
    return Answer(not missing, found, needed, fix)


def _found(subject: Subject, name: str, folders: list[str]) -> bool:
    return any(subject.sight.exists(f"{folder.rstrip('/')}/{name}") for folder in folders)


CHECK = Check("libraries", "error", look)
