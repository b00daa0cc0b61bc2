"""One of several machines, and work that is done on all of them at once."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from tunan.doctor.subject import Subject

Result = TypeVar("Result")


@dataclass(frozen=True)
class Machine:
    """`name`: the host, or the file of its bundle. `clock`: seconds that its clock is ahead of
    this machine's and how wrong that may be. `live`: whether it can be asked more."""

    name: str
    subject: Subject
    clock: tuple[float, float] | None = None
    live: bool = True


def each(machines: Sequence[Machine], work: Callable[[Machine], Result]) -> list[Result]:
    """What `work` gives for each, in order; a thread for each, as most of it is waiting.

    Where it fails, or is interrupted, for one, nobody waits for the others: they end with their
    connections.
    """
    pool = ThreadPoolExecutor(max_workers=max(1, len(machines)))
    try:
        return list(pool.map(work, machines))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
