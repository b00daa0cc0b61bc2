"""Asks the running services of this user over their control sockets."""

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tunan.errors import CheckFailedError, OutsideError, TunanError, UsageError
from tunan.supervisor.control import CONTROL_SOCKET
from tunan.supervisor.directories import running_services

STATUS_PATIENCE_S = 10.0


class SilentServiceError(OutsideError):
    """A service that is there and does not answer."""


@dataclass(frozen=True)
class Service:
    """A running `tunan serve`: its control socket and what it says of itself."""

    socket: Path
    state: dict[str, Any]

    @property
    def names(self) -> set[str]:
        """What it may be called: its name, its port, or both."""
        name, port = str(self.state["name"]), str(urlsplit(self.state["address"]).port)
        return {name, port, f"{name}-{port}"}


def find_services(name: str | None = None) -> list[Service]:
    """The running services, or those called `name` (or `NAME-PORT`, or `PORT`).

    Raises `OutsideError` if there is none, or if one that may be meant does not answer.
    """
    services: list[Service] = []
    silent: SilentServiceError | None = None
    for path in running_services(CONTROL_SOCKET):
        # One that was killed left its socket; one that ends meanwhile is no service either.
        try:
            answers = list(ask(path, "status", STATUS_PATIENCE_S))
        except SilentServiceError as error:
            silent = error
        except OutsideError:
            continue
        else:
            services += [Service(path, answer["service"]) for answer in answers]
    called = [service for service in services if name is None or name in service.names]
    if silent and (name is None or not called):
        raise silent
    if called:
        return called
    if not services:
        raise OutsideError("no service of this user is running; start one with `tunan serve`")
    running = ", ".join(sorted(max(service.names, key=len) for service in services))
    raise OutsideError(f"no service is called {name!r}; running: {running}")


def ask(path: Path, verb: str, patience_s: float | None = None) -> Iterator[dict[str, Any]]:
    """The service's answers to `verb`, as they come.

    Raises the error that it reports, `OutsideError` if it is not there or ends meanwhile.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(patience_s)
            connection.connect(str(path))
            connection.sendall(json.dumps({"verb": verb}).encode() + b"\n")
            with connection.makefile("rb") as lines:
                for line in lines:
                    answer = json.loads(line)
                    if answer.get("done"):
                        return
                    if "error" in answer:
                        raise _error_of(answer["error"], answer["status"])
                    yield answer
    except TimeoutError:
        raise SilentServiceError(
            f"{path}: a service has not answered for {patience_s:g} s; it hangs or is stopped (ps)"
        ) from None
    except OSError as error:
        raise OutsideError(f"{path}: the service does not answer: {error.strerror}") from None
    raise OutsideError(f"{path}: the service ended meanwhile; its log says why")


def _error_of(message: str, status: int) -> TunanError:
    kinds = (CheckFailedError, UsageError, OutsideError)
    return next(kind for kind in kinds if kind.exit_status == status)(message)
