"""The one way in which probes see a machine, so that a recorded machine is seen in the same way.

Every question is a kind and what is asked for, every answer is JSON. Each is asked once.
"""

import json
import os
import platform
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tunan.ascend.probes.programs import Ran, run
from tunan.errors import UsageError

Ask = Callable[[str, str], Any]
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


class Sight:
    """A machine as `ask` shows it. `asked` holds every answer so far, by `kind:what`."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.asked: dict[str, Any] = {}

    def read(self, path: str) -> str | None:
        """The text of a file; None if it is not there or cannot be read."""
        return self._text("file", path)

    def names(self, folder: str) -> tuple[str, ...]:
        """What is in a folder, sorted; empty if it is not there."""
        answer = self.answer("names", folder)
        return tuple(str(name) for name in answer) if isinstance(answer, list) else ()

    def exists(self, path: str) -> bool:
        """Whether there is anything at `path`."""
        return self.answer("exists", path) is True

    def run(self, *arguments: str) -> Ran:
        """What a program printed; its name is looked up on PATH."""
        answer = self.answer("run", shlex.join(arguments))
        if not isinstance(answer, dict):
            return Ran(None, "", f"{arguments[0]} was not asked")
        status, error = answer.get("status"), answer.get("error")
        return Ran(
            status if isinstance(status, int) else None,
            str(answer.get("output", "")),
            None if error is None else str(error),
        )

    def variable(self, name: str) -> str | None:
        """An environment variable out of `VARIABLES`."""
        return self._text("variable", name)

    def package(self, name: str) -> str | None:
        """The version of an installed Python package."""
        return self._text("package", name)

    def disk(self, path: str) -> tuple[int, int] | None:
        """Bytes in all and bytes free of the file system that holds `path`."""
        answer = self.answer("disk", path)
        if not isinstance(answer, list) or len(answer) != 2:
            return None
        total, free = answer
        return (total, free) if isinstance(total, int) and isinstance(free, int) else None

    def system(self, what: str) -> str | None:
        """`kernel`, `machine`, `python`, `glibc`, `hostname`, `user` (a number), `groups` or
        `open files`."""
        return self._text("system", what)

    def address(self, host: str) -> str | None:
        """The address that a host name leads to here."""
        return self._text("address", host)

    def port_in_use(self, where: str) -> bool | None:
        """Whether something listens on `HOST:PORT`; None if that cannot be told."""
        answer = self.answer("port", where)
        return answer if isinstance(answer, bool) else None

    def read_rate(self, path: str) -> float | None:
        """Bytes a second at which a file is read past the page cache, where that works."""
        answer = self.answer("rate", path)
        return float(answer) if isinstance(answer, int | float) and answer > 0 else None

    def _text(self, kind: str, what: str) -> str | None:
        answer = self.answer(kind, what)
        return answer if isinstance(answer, str) else None

    def answer(self, kind: str, what: str) -> Any:
        """The JSON that answers one question; the methods above are the usual ones."""
        key = f"{kind}:{what}"
        if key not in self.asked:
            self.asked[key] = self._ask(kind, what)
        return self.asked[key]


def this_machine(root: Path = Path("/"), environment: Mapping[str, str] | None = None) -> Sight:
    """The machine this runs on (`root` and `environment` are for tests)."""
    return Sight(_Looking(root, dict(os.environ) if environment is None else dict(environment)).ask)


def recorded(answers: Mapping[str, Any]) -> Sight:
    """A machine whose answers were recorded; what was not asked there is not known."""
    return Sight(lambda kind, what: answers.get(f"{kind}:{what}"))


def load_answers(text: str, origin: str) -> dict[str, Any]:
    """The answers in a JSON document. Raises `UsageError`."""
    try:
        answers = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{origin}: not valid JSON: {error}") from None
    if not isinstance(answers, dict):
        raise UsageError(f"{origin}: not a record of a machine")
    return answers


class _Looking:
    """Answers by looking."""

    def __init__(self, root: Path, environment: Mapping[str, str]) -> None:
        self._root = root
        self._environment = environment

    def ask(self, kind: str, what: str) -> Any:
        answer: Callable[[str], Any] = getattr(self, f"_{kind}")
        try:
            return answer(what)
        except (OSError, ValueError):
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
}
