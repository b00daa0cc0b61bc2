"""Reads the NPUs again and again, one reading at a time, and keeps what came last."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tunan.ascend.probes.npu import NpuReport
from tunan.ascend.probes.probe import Probe

Read = Callable[[], Probe[NpuReport]]
ReadLinks = Callable[[int], Mapping[int, bool]]
LINKS_EVERY_S = 30.0  # a process for each device, of something that seldom changes


@dataclass(frozen=True)
class Reading:
    """The last report, None if the last reading failed; `seen`: ids of all devices so far.

    `at` is Unix time, `seconds` how long it took, `failures` counts since the start. `links`:
    whether the network port of the device at a place of the report is up, where that is known.
    """

    report: NpuReport | None = None
    error: str | None = None
    at: float = 0.0
    seconds: float = 0.0
    failures: int = 0
    seen: frozenset[str] = frozenset()
    links: Mapping[int, bool] = field(default_factory=dict)


class Reader:
    """Asks `read` every `interval` seconds in a thread of its own; a hung tool delays only this.

    `links` is asked for the ports of so many devices, not oftener than every `LINKS_EVERY_S`.
    """

    def __init__(self, read: Read, interval: float, links: ReadLinks = lambda _: {}) -> None:
        self._read = read
        self._interval = interval
        self._links = links
        self._links_due = 0.0
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
            links = self._links_of(len(probe.value.devices))
            taken = replace(taken, seen=taken.seen | ids, links=links)
        self.last = taken

    def _links_of(self, count: int) -> Mapping[int, bool]:
        """The last ones, unless they are old or those of another number of devices."""
        now = time.monotonic()
        before = self.last.report
        if now >= self._links_due or before is None or len(before.devices) != count:
            self._links_due = now + max(self._interval, LINKS_EVERY_S)
            return self._links(count)
        return self.last.links

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
