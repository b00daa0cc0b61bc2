"""The emulated machine and the environment that a command needs to see it."""

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tunan_emulator.byte_count import parse_bytes
from tunan_emulator.faults import Fault, parse_faults
from tunan_emulator.missing import PREFIX, libraries_without
from tunan_emulator.settings_error import SettingsError

PACKAGE = Path(__file__).parent

# torch_npu keeps some 20M for itself; no chip has more than a small part of the upper bound.
LEAST_MEMORY, MOST_MEMORY = 64 << 20, 1024 << 30

# Chips by the names people type, as aclrtGetSocName spells them. vllm-ascend's wheel is built for
# the A2 family (910B) and refuses the others.
SOCS = {
    "910b1": "Ascend910B1",
    "910b2": "Ascend910B2",
    "910b2c": "Ascend910B2C",
    "910b3": "Ascend910B3",
    "910b4": "Ascend910B4",
    "910b4-1": "Ascend910B4-1",
    "910c": "Ascend910_9391",
    "310p3": "Ascend310P3",
}

# What a run on the emulator needs besides the libraries. A user's own value wins.
DEFAULTS = {
    # torch.compile's caches are keyed without the device behind them, and reload what cannot run.
    "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
    "VLLM_DISABLE_COMPILE_CACHE": "1",
    # A stream is a thread; every thread that computes would bring a pool of its own.
    "OMP_NUM_THREADS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True)
class EmulatedMachine:
    """`devices` chips of kind `soc` with `memory` each ("4G"), and the faults they are to have.

    `trace` is a file that gets a line for every operator, graph and error. `state` is a folder:
    what names the same one has the same devices, so that processes see what the others have taken
    of a device's memory, and who has one open (its file `davinciN` there). Without it memory is
    counted in each process, and processes that share a device do not see each other's.
    """

    devices: int = 1
    soc: str = "910b3"
    memory: str = "4G"
    faults: str = ""
    trace: Path | None = None
    state: Path | None = None

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """`base` with all that a child process needs. Raises SettingsError."""
        faults = self._checked()
        libraries = libraries_without(_missing_operators(faults), PACKAGE / "lib")
        home = PACKAGE / "home"
        environment = DEFAULTS | dict(base)
        environment |= {
            "ASCEND_HOME_PATH": str(home),
            "ASCEND_TOOLKIT_HOME": str(home),
            "ASCEND_OPP_PATH": str(home / "opp"),
            "LD_LIBRARY_PATH": _first(libraries, base.get("LD_LIBRARY_PATH")),
            "PYTHONPATH": _first(PACKAGE / "shims", base.get("PYTHONPATH")),
            "TUNAN_EMULATE_DEVICES": str(self.devices),
            "TUNAN_EMULATE_FAULTS": self.faults,
            "TUNAN_EMULATE_MEMORY": self.memory,
            "TUNAN_EMULATE_SOC": SOCS[self.soc],
        }
        if self.trace:
            environment["TUNAN_EMULATE_TRACE"] = str(self.trace.absolute())
        environment.pop("TUNAN_EMULATE_STATE", None)  # of an emulator around this one
        if self.state:
            environment["TUNAN_EMULATE_STATE"] = str(self.state.resolve())  # as /proc shows it
        return environment

    def _checked(self) -> list[Fault]:
        if not 1 <= self.devices <= 16:
            raise SettingsError(f"{self.devices} devices: the emulator has 1 to 16")
        if self.soc not in SOCS:
            raise SettingsError(f"unknown chip {self.soc!r}; known: {', '.join(sorted(SOCS))}")
        memory = parse_bytes(self.memory)
        if memory is None:
            raise SettingsError(f"memory {self.memory!r}: write bytes, or a number with K, M or G")
        if not LEAST_MEMORY <= memory <= MOST_MEMORY:
            raise SettingsError(f"memory {self.memory!r}: a device has 64M to 1024G")
        faults = parse_faults(self.faults)
        for fault in faults:
            if int(fault.keys.get("device", 0)) >= self.devices:
                raise SettingsError(
                    f"fault {fault.kind}: there is no device {fault.keys['device']}, "
                    f"the machine has {self.devices} (from 0)"
                )
        if self.trace:
            _refuse_unwritable(self.trace)
        if self.state:
            _make_folder(self.state)
        return faults


def _missing_operators(faults: list[Fault]) -> list[str]:
    return sorted(fault.keys["op"] for fault in faults if fault.kind == "missing")


def _refuse_unwritable(trace: Path) -> None:
    try:
        # Not blocking: a pipe that nobody reads is an error and no wait.
        os.close(os.open(trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o600))
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise SettingsError(f"trace {trace}: {why}; name a file that can be written") from None


def _make_folder(state: Path) -> None:
    try:
        state.mkdir(mode=0o700, exist_ok=True)
        if not os.access(state, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise SettingsError(f"state {state}: {why}; name a folder") from None


def _first(folder: Path, rest: str | None) -> str:
    """`folder` before the `rest` of a search path, less what an emulator around this one put in."""
    own = {str(PACKAGE / "lib"), str(PACKAGE / "shims")}
    others = [
        entry
        for entry in (rest.split(":") if rest else [])
        if entry not in own and not Path(entry).name.startswith(PREFIX)
    ]
    return ":".join([str(folder), *others])
