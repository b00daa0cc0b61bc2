"""How much of the machine other programs use while something is measured."""

import time
from pathlib import Path
from typing import Self

import psutil

TICKS_PER_SECOND = 100  # USER_HZ, the unit of /proc/stat on every Linux


class OtherLoad:
    """`cores`: CPU seconds a second spent outside this process and its descendants."""

    cores = 0.0

    def __enter__(self) -> Self:
        self._started = (time.perf_counter(), _all_seconds(), _own_seconds())
        return self

    def __exit__(self, *_: object) -> None:
        started, everything, own = self._started
        seconds = time.perf_counter() - started
        others = (_all_seconds() - everything) - (_own_seconds() - own)
        self.cores = max(0.0, others / seconds)


def _all_seconds() -> float:
    fields = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:]
    user, nice, system, _idle, _wait, irq, soft = (int(field) for field in fields[:7])
    return (user + nice + system + irq + soft) / TICKS_PER_SECOND


def _own_seconds() -> float:
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total
