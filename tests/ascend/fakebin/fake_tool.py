"""What `npu-smi`, `hccn_tool` and `lscpu` in this folder run: prints for the machine in
the file that FAKE_MACHINE names what the real tool would print there."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.ascend.fakebin import answers
from tests.ascend.fakebin.machine import FakeMachine


def main() -> int:
    name, arguments = Path(sys.argv[1]).name, sys.argv[2:]
    machine = FakeMachine.read(Path(os.environ["FAKE_MACHINE"]))
    if name == "lscpu":
        sys.stdout.write(answers.lscpu(machine))
        return 0
    while machine.hangs:
        time.sleep(60)
    if machine.failure:
        sys.stdout.write(machine.failure + "\n")
        return 1
    tool = {"npu-smi": answers.npu_smi, "hccn_tool": answers.hccn_tool}[name]
    sys.stdout.write(tool(machine, arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
