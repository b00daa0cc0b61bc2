"""What a target can compute with and what it costs to leave it: `kernels/*.yaml`, with sources."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict

from tunan.errors import UsageError
from tunan.ops.registrations import DATA

GIGA = 10**9


class _Fact(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Link(_Fact):
    """What a tensor crosses between the host's memory and one device."""

    what: str
    peak_gbps: float
    efficiency: float

    @property
    def gbps(self) -> float:
        """The rate large copies reach, GB/s one way."""
        return self.peak_gbps * self.efficiency


class Device(_Fact):
    """One target: what it is called, the dtypes it lacks altogether, the dtypes that models run in
    (the default first), whether the engine reads compressed-tensors on it, whether the kernels'
    dtypes are documented for it, and its link to the host."""

    name: str
    chips: tuple[str, ...]
    lacks: frozenset[str]
    runs: tuple[str, ...]
    compressed_tensors: bool
    documented: bool
    link: Link


class Host(_Fact):
    """The CPU beside the device; `gbps` is its memory's."""

    what: str
    gbps: float


class Devices(_Fact):
    """The content of devices.yaml."""

    targets: dict[str, Device]
    crossing_us: float
    host: Host
    sources: dict[str, str]


def target_name(given: str) -> str:
    """The target of a name or of a chip (`ascend910b`, `ascend910b3`, `910B3`).

    Raises UsageError for one that is not known.
    """
    short = str(given).lower().removeprefix("ascend")
    for name, device in devices().targets.items():
        if short == name.removeprefix("ascend") or short in device.chips:
            return name
    known = dict.fromkeys(
        name
        for target, device in devices().targets.items()
        for name in (target, *(f"ascend{chip}" for chip in device.chips))
    )
    raise UsageError(f"unknown target '{given}'; known are {', '.join(known)}")


@cache
def devices() -> Devices:
    """The facts of devices.yaml."""
    return Devices.model_validate(_read("devices.yaml"))


@cache
def kernel_dtypes() -> Mapping[str, frozenset[str]]:
    """Operator (`aten::mm`, without overload) to the input dtypes its kernel is documented for.

    An operator that is not in it has a kernel whose dtypes are not known.
    """
    content = _read("dtypes.yaml")
    return {
        f"{namespace}::{name}": frozenset(entry["dtypes"])
        for namespace in ("aten", "npu")
        for name, entry in content[namespace].items()
    }


def _read(name: str) -> Any:
    import yaml

    return yaml.safe_load((DATA / name).read_text(encoding="utf-8"))
