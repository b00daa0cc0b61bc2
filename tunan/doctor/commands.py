"""The commands that several checks advise: to paste, with remarks behind a #."""

from tunan.ascend.catalogue import releases
from tunan.doctor.subject import Subject


def install(subject: Subject) -> str:
    """What installs driver, CANN and packages for the target, of the newest row of the matrix.

    In a container they come with the image, so the files to build one are what helps there.
    """
    command = f"tunan install --target {subject.target}"
    if subject.in_container:
        return f"{command} --write ./files # then build its Dockerfile on the host"
    newest = releases()[0]
    if subject.release is newest:
        return f"{command} --run"
    return f"{command} --run # the newest row: vllm_ascend {newest.vllm_ascend}"


def upgrade(subject: Subject) -> str:
    """What replaces driver and firmware by those of one release. A container has its host's."""
    where = " # on the host" if subject.in_container else ""
    return f"tunan install --target {subject.target} --upgrade --run{where}"


def set_env(subject: Subject) -> str:
    """Sources the set_env.sh of the toolkit that is there; where none is, that of a new one."""
    home = subject.cann_home or ""
    old = "/ascend-toolkit/" in f"{home}/" and subject.sight.exists(home)
    folder = "ascend-toolkit" if old else "cann"
    return f"source /usr/local/Ascend/{folder}/set_env.sh"
