"""A machine that is looked at over ssh: the system's own program, without passwords.

What runs there is constant text: the names of machines are arguments of ssh, and questions and
answers are lines of JSON through its pipes, never words of a shell.
"""

import contextlib
import json
import os
import re
import select
import shlex
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from tunan.doctor.fleet import far_side
from tunan.errors import UsageError

CONNECT_S = 20.0
# Longer than the slowest tool there may take.
ANSWER_S = 45.0
MOST_ANSWER = 16 << 20  # bytes of one line
_PROBES = Path(far_side.__file__).parents[2] / "ascend" / "probes"
_MODULES = {
    "tunan.ascend.probes.programs": _PROBES / "programs.py",
    "tunan.ascend.probes.read_rate": _PROBES / "read_rate.py",
    "tunan.ascend.probes.looking": _PROBES / "looking.py",
    "tunan.doctor.fleet.far_side": Path(far_side.__file__),
}
# Reads the modules and runs the last one.
_LOADER = """\
import json, sys, types
if sys.version_info < (3, 8):
    sys.exit("Python 3.8 or newer is needed there, python3 is " + sys.version.split()[0])
for name, source in json.loads(sys.stdin.readline()):
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
module.main()
"""
# One line without quotes inside of quotes: any login shell hands it on.
_BEGIN = "import json,sys;exec(json.loads(sys.stdin.readline()))"
# Words of the shell there, all of them ours: `prefix` was checked.
_THERE = (
    "for p in @PREFIX@/venv/bin/python python3; do "
    f'if command -v $p >/dev/null 2>&1; then exec $p -u -c "{_BEGIN}" @PREFIX@; fi; done; '
    "echo no python3 is there >&2; exit 127"
)
PREFIX = "/opt/tunan"
OPTIONS = (
    *("-T", "-x", "-a"),
    *("-o", "BatchMode=yes"),
    *("-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=5"),
    *("-o", "ServerAliveCountMax=3"),
    *("-o", "ClearAllForwardings=yes"),
    *("-o", "PermitLocalCommand=no"),
)


class LostError(Exception):
    """A machine cannot be looked at, or not any more; `args[0]` is one line."""


class Connection:
    """Asks the machine `host` of ssh, by the Python of a Tunan installed in `prefix` there, else by
    python3. Raises `LostError`, or `UsageError` for a prefix that a shell would read. To be closed.
    """

    def __init__(self, host: str, prefix: str = PREFIX) -> None:
        if not re.fullmatch(r"/[\w./-]*", prefix, re.ASCII):
            raise UsageError(
                f"--prefix {prefix}: an absolute path of letters, digits and /._- is taken"
            )
        there = _THERE.replace("@PREFIX@", prefix)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the connection
        self._buffer = b""
        try:
            self._process = subprocess.Popen(
                ["ssh", *OPTIONS, "--", host, f"sh -c {shlex.quote(there)}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )
        except OSError as error:
            self._errors.close()
            raise LostError(f"ssh cannot be started: {error.strerror}") from None

    def greet(self) -> None:
        """Sends what is to run there and waits until it does. Raises `LostError`."""
        modules = [[name, path.read_text(encoding="utf-8")] for name, path in _MODULES.items()]
        self._send(_LOADER)
        self._send(modules)
        until = time.monotonic() + CONNECT_S
        # The shell there may have printed a greeting of its own.
        while self._line(until) != far_side.GREETING.encode():
            pass

    def ask(self, kind: str, what: str) -> Any:
        """The answer to one question of a `Sight`. Raises `LostError`."""
        self._send([kind, what])
        line = self._line(time.monotonic() + ANSWER_S)
        try:
            (answer,) = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            raise LostError("it answered something that is no answer") from None
        return answer

    def clock(self) -> tuple[float, float] | None:
        """How many seconds its clock is ahead of this machine's, and how wrong that may be."""
        found: list[tuple[float, float]] = []
        for _ in range(3):
            begin = time.time()
            told = self.ask("system", "time")
            half = (time.time() - begin) / 2
            with contextlib.suppress(TypeError, ValueError):
                found.append((float(told) - begin - half, abs(half)))
        return min(found, key=lambda pair: pair[1], default=None)

    def close(self) -> None:
        """Ends ssh, and with it what runs there. May be called from another thread."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def release(self) -> None:
        """After `close`, when no thread asks any more."""
        for file in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(OSError):
                if file:
                    file.close()

    def _send(self, value: Any) -> None:
        assert self._process.stdin  # noqa: S101
        try:
            self._process.stdin.write(json.dumps(value).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise LostError(self._why()) from None

    def _line(self, until: float) -> bytes:
        assert self._process.stdout  # noqa: S101
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([pipe], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise LostError("it gave no answer in time")
            if not (more := os.read(pipe, 1 << 16)):
                raise LostError(self._why())
            self._buffer += more
            if len(self._buffer) > MOST_ANSWER:
                raise LostError("its answer does not end")
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.rstrip(b"\r")

    def _why(self) -> str:
        """The last line that ssh or the shell there complained with."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)
        end = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, end - 4096))
        text = self._errors.read().decode("utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][:300] if lines else f"ssh ended with status {self._process.poll()}"
