"""What each replica gets of this machine: a pure function of machine and deployment.

On a CPU the cores are divided between the active replicas, whole NUMA nodes where there are
enough; memory between all. A standby computes only while no active replica can, so it gets the
cores of one of them. On an NPU every replica, standby or not, holds devices of its own.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from tunan.config import Deployment, Replicas
from tunan.errors import UsageError
from tunan.supervisor.machine import Cpu, Machine

T = TypeVar("T")


def machine_shares(machine: Machine, replicas: Replicas) -> tuple[Machine, ...]:
    """The machine as each replica may use it, the active ones first.

    Raises `UsageError` if there is not a core for each active replica.
    """
    if replicas.managed == 1:
        return (machine,)
    parts = _divided(machine, replicas.count or 1)
    parts += [parts[index % len(parts)] for index in range(replicas.managed - len(parts))]
    users = {node: sum(node in _nodes(part) for part in parts) for node in machine.nodes}
    return tuple(
        replace(
            machine,
            cpus=tuple(part),
            memory_total=machine.memory_total // len(parts),
            memory_free=machine.memory_free // len(parts),
            node_free={node: machine.node_free[node] // users[node] for node in _nodes(part)},
            cpu_quota=machine.cpu_quota and machine.cpu_quota / (replicas.count or 1),
            replicas=len(parts),
        )
        for part in parts
    )


def device_shares(deployment: Deployment) -> tuple[Deployment, ...]:
    """The deployment as each replica runs it on NPUs: with devices of its own.

    Raises `UsageError` if `parallel.devices` names too few.
    """
    parallel, managed = deployment.parallel, deployment.replicas.managed
    if managed == 1:
        return (deployment,)
    ranks = parallel.world_size
    devices = parallel.devices or tuple(range(managed * ranks))
    if len(devices) < managed * ranks:
        raise UsageError(
            f"parallel.devices names {len(devices)} devices, {managed} replicas of {ranks} need "
            f"{managed * ranks}; name more, or lower replicas.count or replicas.standby"
        )
    return tuple(
        deployment.model_copy(
            update={
                "parallel": parallel.model_copy(
                    update={"devices": devices[first : first + ranks]},
                )
            }
        )
        for first in range(0, managed * ranks, ranks)
    )


def _divided(machine: Machine, count: int) -> list[list[Cpu]]:
    """The CPUs of `machine` in `count` parts; hyper-threads stay with their core."""
    cores = sorted({(cpu.node, cpu.core) for cpu in machine.cpus})
    usable = min(len(cores), int(machine.cpu_quota or len(cores)))
    if usable < count:
        raise UsageError(
            f"replicas.count: {count} active replicas need a core each, {usable} may be used "
            "here; lower it"
        )
    if len(machine.nodes) >= count:
        return [
            [cpu for cpu in machine.cpus if cpu.node in nodes]
            for nodes in _split(machine.nodes, count)
        ]
    return [
        [cpu for cpu in machine.cpus if (cpu.node, cpu.core) in part]
        for part in _split(cores, count)
    ]


def _split(items: Sequence[T], count: int) -> list[Sequence[T]]:
    ends = [len(items) * (part + 1) // count for part in range(count)]
    return [items[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _nodes(cpus: Sequence[Cpu]) -> set[int]:
    return {cpu.node for cpu in cpus}
