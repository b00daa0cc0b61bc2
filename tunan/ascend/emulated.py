"""The devices that `tunan emulate` gives a command, recognised by the environment it sets."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEVICES = "TUNAN_EMULATE_DEVICES"
CHIP = "TUNAN_EMULATE_SOC"
MEMORY = "TUNAN_EMULATE_MEMORY"
STATE = "TUNAN_EMULATE_STATE"
HOME = "ASCEND_HOME_PATH"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class EmulatedDevices:
    """`count` devices; `chip` as aclrtGetSocName spells it ("Ascend910B3").

    `memory`: bytes of each, None if that is not said. `state`: the folder whose files `davinciN`
    are open in the processes that use device N; None if each process has the memory for itself.
    """

    count: int
    chip: str
    memory: int | None = None
    state: Path | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "EmulatedDevices | None":
        """Those that a process with this environment sees; None outside `tunan emulate`."""
        count, chip = environment.get(DEVICES, ""), environment.get(CHIP, "")
        # The variables alone are no device: the emulated CANN has to be there too.
        home = environment.get(HOME, "")
        if not (count.isdecimal() and int(count) and chip and home and Path(home).is_dir()):
            return None
        state = environment.get(STATE)
        memory = _bytes(environment.get(MEMORY, ""))
        return cls(int(count), chip, memory, Path(state) if state else None)

    def describe(self) -> str:
        """`1 emulated Ascend910B3`."""
        return f"{self.count} emulated {self.chip}"


def _bytes(text: str) -> int | None:
    """`4G` in bytes; None for what is no number of bytes."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([KMG]?)", text)
    return int(float(match[1]) * _UNITS[match[2]]) if match else None
