"""Which chip a device is, from what the driver says of it. The name alone can mislead."""

from dataclasses import dataclass

from tunan.ascend.catalogue.facts import Chip
from tunan.ascend.catalogue.loading import chips


@dataclass(frozen=True)
class Identity:
    """`chip` and `family` are None where they cannot be told; `why` says what decided."""

    chip: Chip | None
    family: str | None
    why: str


def identify(
    name: str | None, *, ddr_mb: int | None = None, dual_die: bool | None = None
) -> Identity:
    """The chip that prints `name` (`910B3`, `Ascend910`), with `ddr_mb` of memory beside its HBM.

    The first generation prints `910B`, too: it has DDR beside the HBM, the 910B1 to B4 have none.
    The 910C prints `Ascend910`, as some drivers do for the first generation. `dual_die`: whether
    npu-smi shows a Phy-ID a die, which it does for the 910C.
    """
    short = (name or "").lower().replace("ascend", "").replace("_", "-").strip(" -")
    if chip := _named(short):
        return Identity(chip, chip.family, f"named {name}")
    if short in ("910b", "910"):
        return _ambiguous(short, name, ddr_mb, dual_die)
    return Identity(None, None, f"no chip is called {name}" if name else "it tells no name")


def _ambiguous(short: str, name: str | None, ddr_mb: int | None, dual_die: bool | None) -> Identity:
    first = chips()["910a"]
    if short == "910" and dual_die:
        return Identity(chips()["910c"], "A3", f"named {name} and has two dies a module")
    if ddr_mb:
        return Identity(first, first.family, f"named {name} but has {ddr_mb} MB of DDR")
    if short == "910b" and ddr_mb == 0:
        return Identity(None, "A2", f"named {name} without a number, no DDR: one of 910B1 to 910B4")
    return Identity(None, None, f"named {name}, which two generations print")


def _named(short: str) -> Chip | None:
    for chip in chips().values():
        if short in {known.replace("_", "-") for known in chip.names}:
            return chip
    return None
