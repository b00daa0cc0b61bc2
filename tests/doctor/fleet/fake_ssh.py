"""Stands for `ssh`: runs what it is given in a shell here, in the environment of a host.

The hosts are in the file that FAKE_HOSTS names: `{name: {variables...}}`; one that has `refuse`
ends as ssh does where it is not let in. Every call is noted in FAKE_LOG.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main() -> None:
    options, (host, command) = sys.argv[1:-3], sys.argv[-2:]
    assert sys.argv[-3] == "--"
    with Path(os.environ["FAKE_LOG"]).open("a") as log:
        log.write(json.dumps({"options": options, "host": host, "command": command}) + "\n")
    hosts = json.loads(Path(os.environ["FAKE_HOSTS"]).read_text())
    variables = hosts.get(host)
    if variables is None:
        sys.exit(f"ssh: Could not resolve hostname {host}: Name or service not known")
    if refused := variables.get("refuse"):
        sys.stderr.write(f"{refused}\n")
        sys.exit(255)
    os.execve("/bin/sh", ["sh", "-c", command], {**os.environ, **variables})


if __name__ == "__main__":
    main()
