"""A machine with NPUs that is not there, and what its tools would print.

The values are invented; the layouts are those that npu-smi has had from 23.0 to 26.0.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

# Widths of the three cells between the bars.
CLASSIC = (27, 15, 52)
WIDE = (27, 15, 70)
NARROW_310 = (31, 17, 54)


@dataclass(frozen=True)
class FakeDie:
    """One die as npu-smi shows it; texts are printed as they are (`-`, `NA`, `-1`)."""

    npu: int
    chip: int = 0
    name: str = "910B3"
    health: str = "OK"
    power: str = "95.5"
    temperature: str = "41"
    bus: str = "0000:C1:00.0"
    load: str = "0"
    ddr: tuple[int, int] = (0, 0)
    memory: tuple[int, int] = (3400, 65536)
    hugepages: tuple[int, int] = (0, 0)
    single_bit: int = 3
    double_bit: int = 0
    codes: str = ""


@dataclass(frozen=True)
class FakeProcess:
    npu: int
    pid: int
    memory: int
    chip: int = 0
    name: str = "python3"


@dataclass(frozen=True)
class FakeMachine:
    """`layout`: classic, dual, no-hbm, wide or name-cell. `process_table`: whether there is one.
    `failure`: printed instead of anything, with status 1. `hangs`: no answer ever comes."""

    dies: tuple[FakeDie, ...]
    layout: str = "classic"
    version: str = "25.5.1"
    firmware: str = "7.8.0.6.201"
    compatible: str = "OK"
    processes: tuple[FakeProcess, ...] = ()
    process_table: bool = True
    failure: str = ""
    hangs: bool = False
    link: str = "UP"
    net_health: str = "Success"
    tls: tuple[int, ...] = ()
    addresses: tuple[str, ...] = ()
    mtu: tuple[int, ...] = ()
    lost_packets: int = 0
    lscpu: dict[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> Path:
        """As JSON, which the programs beside this file read."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path

    @classmethod
    def read(cls, path: Path) -> FakeMachine:
        values = json.loads(path.read_text(encoding="utf-8"))
        values["dies"] = tuple(FakeDie(**_tuples(die)) for die in values["dies"])
        values["processes"] = tuple(FakeProcess(**process) for process in values["processes"])
        for name in ("tls", "addresses", "mtu"):
            values[name] = tuple(values[name])
        return cls(**values)


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}


def a2(count: int = 8, **changes: object) -> FakeMachine:
    """`count` 910B3 on as many PCI addresses."""
    dies = tuple(FakeDie(npu, bus=f"0000:{0x41 + npu:02X}:00.0") for npu in range(count))
    return replace(FakeMachine(dies), **changes)  # type: ignore[arg-type]


def a3(modules: int = 8, **changes: object) -> FakeMachine:
    """`modules` 910C, two dies each."""
    dies = tuple(
        FakeDie(
            npu,
            chip,
            name="Ascend910",
            power="171.5" if chip == 0 else "-",
            bus=f"0000:{0x81 + 4 * npu + 2 * chip:02X}:00.0",
        )
        for npu in range(modules)
        for chip in (0, 1)
    )
    return replace(FakeMachine(dies, layout="dual"), **changes)  # type: ignore[arg-type]


def first_generation(name: str = "910B") -> FakeMachine:
    """A 910A, which some drivers call 910B."""
    dies = tuple(FakeDie(n, name=name, ddr=(1500, 14000), memory=(5, 32768)) for n in range(8))
    return FakeMachine(dies, version="24.1.0", firmware="7.5.0.1.129", process_table=False)


def inference_card() -> FakeMachine:
    """A 310P."""
    die = FakeDie(5, name="310P3", power="NA", ddr=(1700, 21500), memory=(0, 0))
    return FakeMachine((die,), layout="no-hbm", version="25.3.rc1")
