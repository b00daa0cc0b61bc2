"""Progress of long work: a bar with GB/s on a terminal, a plain line now and then elsewhere."""

import sys
import time
from collections.abc import Callable
from typing import Protocol, TextIO

_SECONDS_BETWEEN_LINES = 5.0


class Progress(Protocol):
    """Counts bytes up to a total known at the start."""

    def advance(self, count: int) -> None: ...

    def close(self) -> None: ...


def byte_progress(what: str, total: int, stream: TextIO | None = None) -> Progress:
    """Progress over `total` bytes, shown on `stream` (default: standard error)."""
    stream = stream or sys.stderr
    return (
        BarProgress(what, total, stream) if stream.isatty() else LineProgress(what, total, stream)
    )


class BarProgress:
    """A bar that redraws itself, with the rate and the time left."""

    def __init__(self, what: str, total: int, stream: TextIO) -> None:
        from tqdm import tqdm  # type: ignore[import-untyped]

        self._bar = tqdm(
            desc=what, total=total, unit="B", unit_scale=True, file=stream, dynamic_ncols=True
        )

    def advance(self, count: int) -> None:
        """Counts bytes done."""
        self._bar.update(count)

    def close(self) -> None:
        """Leaves the bar as it is, the line ended."""
        self._bar.close()


class LineProgress:
    """At most one line every few seconds, and one at the end if there was any before."""

    def __init__(
        self, what: str, total: int, stream: TextIO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what, self._total, self._stream, self._clock = what, total, stream, clock
        self._begin = self._last = clock()
        self._done = self._printed = 0

    def advance(self, count: int) -> None:
        """Counts bytes done."""
        self._done += count
        if self._clock() - self._last >= _SECONDS_BETWEEN_LINES:
            self._print()

    def close(self) -> None:
        """Prints the last line of a run long enough to have had others."""
        if self._printed and self._printed < self._done:
            self._print()

    def _print(self) -> None:
        self._last, self._printed = self._clock(), self._done
        rate = self._done / max(1e-9, self._last - self._begin) / 1e9
        share = 100 * self._done // max(1, self._total)
        line = f"{self._what}: {share}% ({self._done / 1e9:.1f} of {self._total / 1e9:.1f} GB)"
        print(f"{line}, {rate:.2f} GB/s", file=self._stream, flush=True)
