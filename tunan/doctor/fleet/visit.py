"""Looks at several machines over ssh, all at once."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tunan.ascend.probes.sight import Sight
from tunan.doctor.examining import Examination, examine
from tunan.doctor.fleet.connection import PREFIX, Connection, LostError
from tunan.doctor.fleet.machine import Machine
from tunan.doctor.subject import Asked, Subject


@dataclass(frozen=True)
class Visited:
    """A machine with its own findings, or why it could not be looked at."""

    name: str
    machine: Machine | None = None
    examination: Examination | None = None
    lost: str | None = None


@contextmanager
def visited(hosts: Sequence[str], asked: Asked, prefix: str = PREFIX) -> Iterator[list[Visited]]:
    """Each of `hosts`, in order, still connected inside of the context.

    `prefix`: where Tunan is installed on them, if it is. Raises `UsageError`.
    """
    doors: list[Connection | str] = []
    with ExitStack() as connections, ThreadPoolExecutor(max_workers=len(hosts)) as pool:
        try:
            for host in hosts:
                doors.append(_door(host, prefix, connections))
            looks = [
                pool.submit(_visit, host, door, asked)
                for host, door in zip(hosts, doors, strict=True)
            ]
            yield [look.result() for look in looks]
        finally:
            # Ended first, so that no thread of the pool waits for an answer (Ctrl-C).
            for door in doors:
                if isinstance(door, Connection):
                    door.close()


def _door(host: str, prefix: str, connections: ExitStack) -> Connection | str:
    try:
        connection = Connection(host, prefix)
    except LostError as error:
        return str(error)
    connections.callback(connection.release)
    return connection


def _visit(host: str, door: Connection | str, asked: Asked) -> Visited:
    if isinstance(door, str):
        return Visited(host, lost=door)
    try:
        door.greet()
        machine = Machine(host, Subject(Sight(door.ask), asked), door.clock())
        return Visited(host, machine, examine(machine.subject))
    except LostError as error:
        return Visited(host, lost=str(error))
