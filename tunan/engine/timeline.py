"""When the steps of a start were done: lines in the file that `TUNAN_START_TIMELINE` names.

`benchmarks/startup.py` makes a table of them. Without the variable nothing is written.
"""

import os
import time

VARIABLE = "TUNAN_START_TIMELINE"


def mark(step: str) -> None:
    """Adds a line: seconds of the machine's monotonic clock, seconds of CPU time that this process
    has taken, its number, and the step that is done."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    line = f"{time.monotonic():.3f} {time.process_time():.3f} {os.getpid()} {step}\n"
    with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123  # before pathlib is imported
        file.write(line)
