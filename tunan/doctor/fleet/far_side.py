"""What runs on a machine that is looked at over ssh: answers questions until its input ends.

Sent there as text with the modules it imports (see `connection`), so it needs Python 3.8 and no
Tunan. Where Tunan is installed, the Python of its environment runs this, because the versions of
the packages in it are asked for.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from tunan.ascend.probes.looking import Looking
from tunan.ascend.probes.programs import run

GREETING = "tunan-far-side-1"
# Without an installation of `tunan install`: what CANN's own installers leave.
# The newer CANN last: of two that are there its paths come first.
OF_CANN = (
    "/usr/local/Ascend/ascend-toolkit/set_env.sh",
    "/usr/local/Ascend/cann/set_env.sh",
    "/usr/local/Ascend/nnal/atb/set_env.sh",
)
# A shell without a login has a short PATH.
FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_SOURCE = 'for f; do [ ! -r "$f" ] || . "$f"; done >/dev/null 2>&1; exec env -0'


def main() -> None:
    """Reads `[kind, what]` a line, writes `[answer]` a line."""
    from pathlib import Path

    looking = Looking(Path("/"), environment(sys.argv[1]))
    print(GREETING, flush=True)  # noqa: T201
    for line in sys.stdin:
        kind, what = json.loads(line)
        answer = _checkpoint(what) if kind == "checkpoint" else looking.ask(kind, what)
        print(json.dumps([answer]), flush=True)  # noqa: T201


def environment(prefix: str) -> dict[str, str]:
    """That of this process, with the variables that a service installed in `prefix` starts in."""
    found = dict(os.environ)
    folders = found.get("PATH", "").split(os.pathsep)
    found["PATH"] = os.pathsep.join([*folders, *(f for f in FOLDERS if f not in folders)])
    installed = os.path.join(prefix, "env.sh")  # noqa: PTH118
    files = [installed] if os.access(installed, os.R_OK) else list(OF_CANN)
    told = run(["bash", "-c", _SOURCE, "bash", *files], found)
    pairs = (entry.partition("=") for entry in told.output.split("\0"))
    return {**found, **{key: value for key, _, value in pairs if key}}


def _checkpoint(path: str) -> Any:
    """Only Tunan can measure one."""
    try:
        from tunan.doctor.subject import checkpoint_answer
    except Exception:  # whatever is wrong with that installation
        return None
    return checkpoint_answer(path)
