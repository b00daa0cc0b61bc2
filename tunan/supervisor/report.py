"""What `tunan serve` tells: short lines on stderr, or one JSON object a line on stdout."""

import json
import sys
import time


class Report:
    """Writes events as they happen; progress redraws one line on a terminal."""

    def __init__(self, as_json: bool = False) -> None:
        self._json = as_json
        self._terminal = sys.stderr.isatty() and not as_json
        self._started = time.monotonic()
        self._last = ""
        self._open_line = False

    def event(self, name: str, text: str, **values: object) -> None:
        """One event: `text` for people, `name` and `values` for programs."""
        if self._json:
            seconds = round(time.monotonic() - self._started, 3)
            line = json.dumps({"event": name, "seconds": seconds, **values}, ensure_ascii=False)
            print(line, flush=True)  # noqa: T201
            return
        self._end_line()
        print(text, file=sys.stderr, flush=True)  # noqa: T201

    def progress(self, stage: str, text: str, done: int, total: int) -> None:
        """How far a stage is: redrawn on a terminal, elsewhere only its beginning and end."""
        if self._json:
            if done in (0, total) or stage != self._last:
                self.event("progress", text, stage=stage, done=done, total=total)
        elif self._terminal:
            print(f"\r\x1b[K  {text}", end="", file=sys.stderr, flush=True)  # noqa: T201
            self._open_line = True
        elif stage != self._last:
            print(f"  {text}", file=sys.stderr, flush=True)  # noqa: T201
        self._last = stage

    def _end_line(self) -> None:
        if self._open_line:
            print("\r\x1b[K", end="", file=sys.stderr)  # noqa: T201
            self._open_line = False
