"""Progress on a terminal and elsewhere."""

import io

from tunan.cli.progress import BarProgress, LineProgress, byte_progress
from tunan.cli.table import render


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_with_a_rate() -> None:
    stream = Terminal()
    progress = byte_progress("convert", 2_000_000_000, stream)
    assert isinstance(progress, BarProgress)
    progress.advance(1_000_000_000)
    progress.close()
    assert "convert: " in stream.getvalue()
    assert "B/s" in stream.getvalue()


def test_elsewhere_lines_come_seconds_apart() -> None:
    now = 0.0
    stream = io.StringIO()
    progress = LineProgress("verify", 10_000_000_000, stream, lambda: now)
    for _ in range(40):
        now += 0.25
        progress.advance(250_000_000)
    progress.close()
    lines = stream.getvalue().splitlines()
    assert lines == [
        "verify: 50% (5.0 of 10.0 GB), 1.00 GB/s",
        "verify: 100% (10.0 of 10.0 GB), 1.00 GB/s",
    ]


def test_a_short_run_prints_no_line() -> None:
    stream = io.StringIO()
    progress = byte_progress("verify", 10, stream)
    progress.advance(10)
    progress.close()
    assert stream.getvalue() == ""


def test_a_table_is_as_wide_as_its_content() -> None:
    assert render(("a", "b"), [("long", 1), ("x", 22)]) == "a     b\n----  --\nlong  1\nx     22"
