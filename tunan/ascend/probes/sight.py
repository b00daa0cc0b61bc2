"""The one way in which probes see a machine, so that a recorded machine is seen in the same way.

Every question is a kind and what is asked for, every answer is JSON. Each is asked once.
"""

import json
import os
import shlex
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tunan.ascend.probes.looking import Looking
from tunan.ascend.probes.programs import Ran
from tunan.errors import UsageError

Ask = Callable[[str, str], Any]


class Sight:
    """A machine as `ask` shows it. `asked` holds every answer so far, by `kind:what`.

    `side_by_side`: whether `ask` may be called by several threads at once.
    """

    def __init__(self, ask: Ask, *, side_by_side: bool = False) -> None:
        self._ask = ask
        self.side_by_side = side_by_side
        self.asked: dict[str, Any] = {}
        self._closed = False
        self._lock = threading.Lock()
        self._being_asked: dict[str, threading.Lock] = {}

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

    def reach(self, where: str) -> str | None:
        """What connecting to `HOST:PORT` gives: `open`, `refused` (reached, and nobody listens),
        `no answer` (something drops it) or the system's reason."""
        return self._text("reach", where)

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
        with self._lock:
            asking = self._being_asked.setdefault(key, threading.Lock())
        with asking:
            if key not in self.asked:
                if self._closed:
                    return None
                self.asked[key] = self._ask(kind, what)
            return self.asked[key]

    def close(self) -> None:
        """Asks nothing more: what is not known yet stays so."""
        self._closed = True


def this_machine(root: Path = Path("/"), environment: Mapping[str, str] | None = None) -> Sight:
    """The machine this runs on (`root` and `environment` are for tests)."""
    seen = dict(os.environ) if environment is None else dict(environment)
    return Sight(Looking(root, seen).ask, side_by_side=True)


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
