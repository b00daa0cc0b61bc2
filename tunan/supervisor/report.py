"""What `tunan serve` tells: short lines on stderr, or one JSON object a line on stdout."""

import contextlib
import json
import sys
import time
from dataclasses import dataclass
from typing import TextIO


class Report:
    """Writes events as they happen; progress redraws one line on a terminal."""

    def __init__(self, as_json: bool = False) -> None:
        self._json = as_json
        self._terminal = sys.stderr.isatty() and not as_json
        self._started = time.monotonic()
        self._last: dict[str, str] = {}
        self._open_line = False

    def event(self, name: str, text: str = "", **values: object) -> None:
        """One event: `text` (if any) for people, `name` and `values` for programs."""
        if self._json:
            seconds = round(time.monotonic() - self._started, 3)
            line = json.dumps({"event": name, "seconds": seconds, **values}, ensure_ascii=False)
            self._write(line + "\n", sys.stdout)
            return
        self._end_line()
        if text:
            self._write(text + "\n", sys.stderr)

    def progress(self, stage: str, text: str, done: int, total: int, replica: str = "") -> None:
        """How far a stage is: redrawn on a terminal, elsewhere only its beginning and end."""
        begins = stage != self._last.get(replica)
        if self._json:
            if done in (0, total) or begins:
                named = {"replica": replica} if replica else {}
                self.event("progress", text, stage=stage, done=done, total=total, **named)
        elif self._terminal:
            self._write(f"\r\x1b[K  {text}", sys.stderr)
            self._open_line = True
        elif begins:
            self._write(f"  {text}\n", sys.stderr)
        self._last[replica] = stage

    def _end_line(self) -> None:
        if self._open_line:
            self._write("\r\x1b[K", sys.stderr)
            self._open_line = False

    @staticmethod
    def _write(text: str, stream: TextIO) -> None:
        """A service goes on when nobody reads what it says any more."""
        with contextlib.suppress(OSError):
            stream.write(text)
            stream.flush()


@dataclass(frozen=True)
class About:
    """The report on one replica: its name is in every event, and in the text unless it is alone."""

    report: Report
    replica: str
    alone: bool = True

    def event(self, name: str, text: str = "", **values: object) -> None:
        """One event; `text` without the `tunan:` before it."""
        line = f"tunan: {self._named(text)}" if text else ""
        self.report.event(name, line, replica=self.replica, **values)

    def progress(self, stage: str, text: str, done: int, total: int) -> None:
        """How far a stage is."""
        self.report.progress(stage, self._named(text), done, total, self.replica)

    def _named(self, text: str) -> str:
        return text if self.alone else f"{self.replica}: {text}"
