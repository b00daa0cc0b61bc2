"""Machines to compute settings for, besides the one the tests run on."""

from pathlib import Path

from tunan.supervisor.machine import Cpu, Machine

GIB = 1 << 30
IOMP = Path("/venv/lib/libiomp5.so")
GOMP = Path("/venv/torch/lib/libgomp.so.1")
TCMALLOC = Path("/usr/lib/libtcmalloc_minimal.so.4")


def laptop() -> Machine:
    """Four cores, one node, x86."""
    return machine([Cpu(i, i, 0) for i in range(4)], memory=16)


def kunpeng() -> Machine:
    """Two sockets Kunpeng 920: four NUMA nodes of 32 cores, no SMT, GNU OpenMP."""
    cpus = [Cpu(i, i, i // 32) for i in range(128)]
    return machine(cpus, memory=512, architecture="aarch64", openmp=GOMP)


def smt_xeon() -> Machine:
    """One socket, 8 cores, 16 threads: CPU i and i + 8 share a core."""
    return machine([Cpu(i, i % 8, 0) for i in range(16)], memory=64)


def container(quota: float) -> Machine:
    """A container on 16 cores that may use the time of `quota` of them."""
    return machine([Cpu(i, i, 0) for i in range(16)], memory=8, quota=quota)


def machine(
    cpus: list[Cpu],
    memory: float,
    architecture: str = "x86_64",
    openmp: Path | None = IOMP,
    quota: float | None = None,
) -> Machine:
    """A machine with `memory` GiB, all of it free, spread evenly over its nodes."""
    nodes = {cpu.node for cpu in cpus}
    size = int(memory * GIB)
    return Machine(
        architecture=architecture,
        cpus=tuple(cpus),
        memory_total=size,
        memory_free=size,
        node_free={node: size // len(nodes) for node in nodes},
        cpu_quota=quota,
        openmp=openmp,
        tcmalloc=TCMALLOC,
    )
