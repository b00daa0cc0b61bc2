"""The devices that `tunan emulate` gives a command, recognised by the environment it sets."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEVICES = "TUNAN_EMULATE_DEVICES"
CHIP = "TUNAN_EMULATE_SOC"
HOME = "ASCEND_HOME_PATH"


@dataclass(frozen=True)
class EmulatedDevices:
    """`count` devices; `chip` as aclrtGetSocName spells it ("Ascend910B3")."""

    count: int
    chip: str

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "EmulatedDevices | None":
        """Those that a process with this environment sees; None outside `tunan emulate`."""
        count, chip = environment.get(DEVICES, ""), environment.get(CHIP, "")
        # The variables alone are no device: the emulated CANN has to be there too.
        home = environment.get(HOME, "")
        if not (count.isdecimal() and int(count) and chip and home and Path(home).is_dir()):
            return None
        return cls(int(count), chip)

    def describe(self) -> str:
        """`1 emulated Ascend910B3`."""
        return f"{self.count} emulated {self.chip}"
