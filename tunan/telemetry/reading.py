"""Reads the NPUs again and again, one reading at a time, and keeps what came last."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tunan.ascend.probes.npu import NpuReport
from tunan.ascend.probes.npu_smi_fields import Ecc
from tunan.ascend.probes.probe import Probe

Read = Callable[[], Probe[NpuReport]]
ReadLinks = Callable[[int], Mapping[int, bool]]
ReadEcc = Callable[[NpuReport], Mapping[int, Ecc]]
SELDOM_S = 30.0  # a process for each device, of something that seldom changes


@dataclass(frozen=True)
class Reading:
    """The last report, None if the last reading failed; `seen`: ids of all devices so far.

    `at` is Unix time, `seconds` how long it took, `failures` counts since the start. Of the device
    at a place of the report, where that is known: `links`, whether its network port is up; `ecc`,
    the errors in its memory.
    """

    report: NpuReport | None = None
    error: str | None = None
    at: float = 0.0
    seconds: float = 0.0
    failures: int = 0
    seen: frozenset[str] = frozenset()
    links: Mapping[int, bool] = field(default_factory=dict)
    ecc: Mapping[int, Ecc] = field(default_factory=dict)


class Reader:
    """Asks `read` every `interval` seconds in a thread of its own; a hung tool delays only this.

    `links` is asked for the ports of so many devices, `ecc` for the errors of all, neither oftener
    than every `SELDOM_S`.
    """

    def __init__(
        self,
        read: Read,
        interval: float,
        links: ReadLinks = lambda _: {},
        ecc: ReadEcc = lambda _: {},
    ) -> None:
        self._read = read
        self._interval = interval
        self._links = links
        self._ecc = ecc
        self._due = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="npu-reader", daemon=True)
        self.last = Reading()

    def start(self) -> None:
        """Reads once, so that the first scrape has something, then goes on in the background."""
        self.read_once()
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; a reading that hangs is not waited for."""
        self._stop.set()
        self._thread.join(timeout=1)

    def read_once(self) -> None:
        """Takes one reading."""
        begin = time.monotonic()
        probe = self._read()
        taken = Reading(
            report=probe.value,
            error=probe.error,
            at=time.time(),
            seconds=time.monotonic() - begin,
            failures=self.last.failures + (probe.value is None),
            seen=self.last.seen,
        )
        if probe.value:
            ids = frozenset(device_ids(probe.value))
            taken = replace(taken, seen=taken.seen | ids)
            taken = self._with_what_is_seldom_asked(taken, probe.value)
        self.last = taken

    def _with_what_is_seldom_asked(self, taken: Reading, report: NpuReport) -> Reading:
        """With the last answers, unless they are old or those of another number of devices. Until
        there are new ones, which takes a program a device, the rest of the reading is shown."""
        now, before = time.monotonic(), self.last
        is_same = before.report is not None and len(before.report.devices) == len(report.devices)
        if is_same:
            taken = replace(taken, links=before.links, ecc=before.ecc)
        if is_same and now < self._due:
            return taken
        self._due = now + max(self._interval, SELDOM_S)
        self.last = taken
        return replace(taken, links=self._links(len(report.devices)), ecc=self._ecc(report))

    def _go_on(self) -> None:
        while not self._stop.wait(self._interval):
            self.read_once()


def device_ids(report: NpuReport) -> list[str]:
    """The label `id` of each device: the driver's physical number, or its place in the list where
    one of them has none (two devices must never share a label)."""
    physical = [device.physical_id for device in report.devices]
    if None in physical or len(set(physical)) < len(physical):
        return [str(place) for place, _ in enumerate(physical)]
    return [str(number) for number in physical]
