"""What is known of the NPUs of a machine, whoever said it. Memory in MB (2**20 bytes)."""

from dataclasses import dataclass

from tunan.ascend.catalogue import Identity, identify


@dataclass(frozen=True)
class NpuDevice:
    """One die. `npu` and `chip` are the driver's numbers of the module and the die in it.

    `ddr_*` is memory beside the HBM (on a 310P all there is). `ecc_double_bit` counts errors that
    could not be corrected since the driver was loaded. None is what was not said.
    """

    npu: int
    chip: int | None = None
    physical_id: int | None = None
    name: str | None = None
    health: str | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    bus: str | None = None
    aicore_percent: int | None = None
    ddr_used_mb: int | None = None
    ddr_total_mb: int | None = None
    hbm_used_mb: int | None = None
    hbm_total_mb: int | None = None
    hugepages_used: int | None = None
    hugepages_total: int | None = None
    ecc_single_bit: int | None = None
    ecc_double_bit: int | None = None

    @property
    def memory_total_mb(self) -> int | None:
        """What models are loaded into: the HBM, or the DDR of a chip without HBM."""
        return self.hbm_total_mb or self.ddr_total_mb

    @property
    def memory_used_mb(self) -> int | None:
        """Of `memory_total_mb`."""
        return self.hbm_used_mb if self.hbm_total_mb else self.ddr_used_mb

    @property
    def memory_free_mb(self) -> int | None:
        """Of `memory_total_mb`."""
        total, used = self.memory_total_mb, self.memory_used_mb
        return None if total is None or used is None else max(0, total - used)

    def describe(self) -> str:
        """`NPU 0`, or `NPU 0 chip 1` on a module with two."""
        return f"NPU {self.npu}" + (f" chip {self.chip}" if self.chip else "")


@dataclass(frozen=True)
class NpuProcess:
    """A process that holds memory of a die; a container does not tell `name`."""

    npu: int
    chip: int | None
    pid: int
    name: str | None
    memory_mb: int | None


@dataclass(frozen=True)
class NpuReport:
    """All NPUs. `told`: the modules whose processes were told of; of others nothing is known,
    which is not the same as idle. `dual_die`: whether modules show two dies, None if not said."""

    devices: tuple[NpuDevice, ...]
    driver: str | None = None
    processes: tuple[NpuProcess, ...] = ()
    told: frozenset[int] = frozenset()
    dual_die: bool | None = None

    def processes_of(self, device: NpuDevice) -> tuple[NpuProcess, ...] | None:
        """Those that hold memory of `device`; None if that is not known."""
        if device.npu not in self.told:
            return None
        here = (device.npu, device.chip)
        return tuple(p for p in self.processes if (p.npu, p.chip) in (here, (device.npu, None)))

    def identity(self, device: NpuDevice) -> Identity:
        """Which chip of the catalogue `device` is."""
        return identify(device.name, ddr_mb=device.ddr_total_mb, dual_die=self.dual_die)
