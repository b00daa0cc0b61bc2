"""Answers the questions of a `Sight` by looking at the machine this runs on.

This module and those that it imports are also sent over ssh to machines without Tunan (see
`tunan.doctor.fleet`): they need Python 3.8 and its own library, nothing else.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import socket
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunan.ascend.probes.programs import run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MOST_FILE = 1 << 20  # bytes
# Nothing else of the environment is looked at: it may hold keys.
VARIABLES = (
    "ASCEND_HOME_PATH",
    "ASCEND_TOOLKIT_HOME",
    "ASCEND_OPP_PATH",
    "ASCEND_RT_VISIBLE_DEVICES",
    "ATB_HOME_PATH",
    "LD_LIBRARY_PATH",
    "PYTORCH_NPU_ALLOC_CONF",
    "TUNAN_EMULATE_DEVICES",
    "TUNAN_EMULATE_MEMORY",
    "TUNAN_EMULATE_SOC",
)
_REACH_S = 3.0


class Looking:
    """A machine below `root`, with the `environment` that programs are started in."""

    def __init__(self, root: Path, environment: Mapping[str, str]) -> None:
        self._root = root
        self._environment = environment

    def ask(self, kind: str, what: str) -> Any:
        """The JSON that answers one question; None where there is no answer."""
        answer: Callable[[str], Any] | None = getattr(self, f"_{kind}", None)
        try:
            return answer(what) if answer else None
        except (OSError, ValueError, LookupError):
            return None

    def _at(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    def _file(self, path: str) -> str:
        with self._at(path).open("rb") as file:
            return file.read(MOST_FILE).decode("utf-8", errors="replace")

    def _names(self, folder: str) -> list[str]:
        return sorted(path.name for path in self._at(folder).iterdir())

    def _exists(self, path: str) -> bool:
        return self._at(path).exists()

    def _run(self, command: str) -> dict[str, Any]:
        arguments = shlex.split(command)
        program = self._program(arguments[0])
        if program is None:
            return {"status": None, "output": "", "error": f"{arguments[0]} is not installed"}
        ran = run([program, *arguments[1:]], self._environment)
        return {"status": ran.status, "output": ran.output, "error": ran.error}

    def _program(self, name: str) -> str | None:
        if name == "python":
            return sys.executable
        found = shutil.which(name, path=self._environment.get("PATH", os.defpath))
        # hccn_tool is installed where no PATH leads.
        aside = self._at(f"/usr/local/Ascend/driver/tools/{name}")
        return found or (str(aside) if os.access(aside, os.X_OK) else None)

    def _variable(self, name: str) -> str | None:
        return self._environment.get(name) if name in VARIABLES else None

    def _package(self, name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    def _disk(self, path: str) -> list[int]:
        usage = shutil.disk_usage(self._at(path))
        return [usage.total, usage.free]

    def _system(self, what: str) -> str | None:
        return _SYSTEM[what]()

    def _address(self, host: str) -> str:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])

    def _port(self, where: str) -> bool:
        host, _, port = where.rpartition(":")
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex((host, int(port))) == 0

    def _reach(self, where: str) -> str:
        host, _, port = where.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), timeout=_REACH_S):
                return "open"
        except ConnectionRefusedError:
            return "refused"
        except socket.timeout:  # noqa: UP041  its name before Python 3.10
            return "no answer"
        except OSError as error:
            return error.strerror or "unreachable"

    def _rate(self, path: str) -> float | None:
        from tunan.ascend.probes.read_rate import read_rate

        return read_rate(self._at(path))


def _groups() -> str:
    import grp

    names: list[str] = []
    for number in os.getgroups():
        try:
            names.append(grp.getgrgid(number).gr_name)
        except KeyError:
            names.append(str(number))
    return " ".join(names)


def _open_files() -> str:
    import resource

    return str(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


_SYSTEM: dict[str, Callable[[], str]] = {
    "kernel": platform.release,
    "machine": platform.machine,
    "python": platform.python_version,
    "glibc": lambda: platform.libc_ver()[1],
    "hostname": socket.gethostname,
    "user": lambda: str(os.getuid()),
    "groups": _groups,
    "open files": _open_files,
    "time": lambda: repr(time.time()),
}
