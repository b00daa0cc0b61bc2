"""What the machine offers an engine on its CPU, found by looking; no torch, no vLLM.

`look()` reads sysfs, cgroups and the affinity mask; everything after it is a pure function
of the `Machine` it returns, so that tests can be other machines.
"""

import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

LIBOMP_NAMES = ("libiomp5.so",)
TCMALLOC_NAMES = ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4")
_UNLIMITED = 1 << 60  # cgroup v1 writes a number near 2**63 for "no limit"


@dataclass(frozen=True)
class Cpu:
    """One logical CPU this process may run on; `core` is unique over all sockets."""

    id: int
    core: int
    node: int


@dataclass(frozen=True)
class Machine:
    """The part of a machine this process may use. Memory in bytes.

    `replicas`: how many share it evenly, if this is the share of one.
    """

    architecture: str
    cpus: tuple[Cpu, ...]
    memory_total: int
    memory_free: int
    node_free: dict[int, int]
    cpu_quota: float | None = None
    openmp: Path | None = None
    tcmalloc: Path | None = None
    replicas: int = 1

    @property
    def nodes(self) -> tuple[int, ...]:
        """NUMA nodes with usable CPUs, ascending."""
        return tuple(sorted({cpu.node for cpu in self.cpus}))


def look(root: Path = Path("/"), affinity: frozenset[int] | None = None) -> Machine:
    """This machine as seen from this process (`root` and `affinity` are for tests)."""
    allowed = affinity if affinity is not None else frozenset(os.sched_getaffinity(0))
    node_of = _nodes(root)
    cpus = tuple(_cpu(root, i, node_of.get(i, 0)) for i in sorted(allowed))
    total, free = _memory(root)
    return Machine(
        architecture=platform.machine(),
        cpus=cpus,
        memory_total=total,
        memory_free=free,
        node_free={n: min(free, _node_free(root, n, free)) for n in {c.node for c in cpus}},
        cpu_quota=_cpu_quota(root),
        openmp=_library(LIBOMP_NAMES, (Path(sys.prefix) / "lib",)),
        tcmalloc=_library(TCMALLOC_NAMES, _library_folders(root)),
    )


def parse_list(text: str) -> list[int]:
    """The kernel's list format: `0-2,5` is [0, 1, 2, 5]."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None


def _nodes(root: Path) -> dict[int, int]:
    found: dict[int, int] = {}
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        for cpu in parse_list(_read(folder / "cpulist") or ""):
            found[cpu] = int(folder.name.removeprefix("node"))
    return found


def _cpu(root: Path, cpu: int, node: int) -> Cpu:
    siblings = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    # The lowest sibling names the core: core_id alone repeats on every socket.
    core = min(parse_list(_read(siblings) or "") or [cpu])
    return Cpu(cpu, core, node)


def _meminfo(text: str) -> dict[str, int]:
    values: dict[str, int] = {}
    for line in text.splitlines():
        key, _, rest = line.partition(":")
        fields = rest.split()
        if fields and fields[0].isdigit():
            values[key.split()[-1]] = int(fields[0]) * 1024
    return values


def _memory(root: Path) -> tuple[int, int]:
    info = _meminfo(_read(root / "proc/meminfo") or "")
    total, free = info.get("MemTotal", 0), info.get("MemAvailable", 0)
    for folder, limit_name, usage_name in _cgroups(root, "memory"):
        limit = _read(folder / limit_name)
        usage = _read(folder / usage_name)
        if limit and limit.isdigit() and usage and usage.isdigit() and int(limit) < _UNLIMITED:
            # The page cache counts as usage but gives way, so add it back.
            cache = _cgroup_file_cache(folder)
            total = min(total, int(limit))
            free = min(free, max(0, int(limit) - int(usage) + cache))
    return total, free


def _cgroup_file_cache(folder: Path) -> int:
    for line in (_read(folder / "memory.stat") or "").splitlines():
        key, _, value = line.partition(" ")
        if key in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _node_free(root: Path, node: int, otherwise: int) -> int:
    """Free on one node, counted as vLLM's CPU worker counts it: free plus file pages."""
    text = _read(root / f"sys/devices/system/node/node{node}/meminfo")
    if text is None:
        return otherwise
    info = _meminfo(text)
    keys = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")
    return sum(info.get(key, 0) for key in keys)


def _cgroups(root: Path, controller: str) -> list[tuple[Path, str, str]]:
    """Every cgroup above this process, with the names of its limit and usage files."""
    names = {
        "memory": (("memory.max", "memory.current"),
                   ("memory.limit_in_bytes", "memory.usage_in_bytes")),
        "cpu": (("cpu.max", ""), ("cpu.cfs_quota_us", "cpu.cfs_period_us")),
    }[controller]  # fmt: skip
    found: list[tuple[Path, str, str]] = []
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            top, files = root / "sys/fs/cgroup", names[0]
        elif controller in controllers.split(","):
            top, files = root / "sys/fs/cgroup" / controllers, names[1]
        else:
            continue
        here = top / path.lstrip("/")
        # Inside a container the path may not exist under the mount: the mount itself holds it.
        found += [(f, *files) for f in (here, *here.parents) if f.is_relative_to(top)]
    return found


def _cpu_quota(root: Path) -> float | None:
    quotas: list[float] = []
    for folder, quota_name, period_name in _cgroups(root, "cpu"):
        fields = (_read(folder / quota_name) or "").split()
        if period_name:
            fields += (_read(folder / period_name) or "").split()
        if len(fields) == 2 and fields[0].isdigit() and int(fields[1]) > 0:
            quotas.append(int(fields[0]) / int(fields[1]))
    return min(quotas, default=None)


def _library_folders(root: Path) -> tuple[Path, ...]:
    triple = f"{platform.machine()}-linux-gnu"
    return (
        *(Path(folder) / "vllm/libs" for folder in sys.path if folder.endswith("site-packages")),
        Path(sys.prefix) / "lib",
        root / "usr/lib" / triple,
        root / "usr/lib64",
        root / "usr/lib",
        root / "usr/local/lib",
    )


def _library(names: tuple[str, ...], folders: tuple[Path, ...]) -> Path | None:
    for folder in folders:
        for name in names:
            for path in (folder / name, *folder.glob(name.replace(".so.", "-*.so."))):
                if path.is_file():
                    return path
    return None
