"""Which CPUs each rank of a replica computes on: a pure function of the machine.

One thread a physical core (a hyper-thread sibling adds nothing to matrix products), every
core used, ranks kept on NUMA nodes of their own where there are enough, and never more
threads than the container's CPU quota allows, since throttled threads stall the others at
every OpenMP barrier.
"""

from tunan.supervisor.machine import Machine


def cpus_of_ranks(machine: Machine, ranks: int) -> tuple[tuple[int, ...], ...]:
    """CPU numbers for each of `ranks` local ranks, at least one each.

    Ranks share CPUs only if there are more ranks than cores.
    """
    groups = _cores_by_node(machine)
    if len(groups) >= ranks:
        # vLLM's worker takes memory from one node only, so it computes there too.
        best = sorted(groups, key=lambda node: (-len(groups[node]), node))[:ranks]
        chosen = [groups[node] for node in sorted(best)]
    else:
        chosen = _split([cpu for node in sorted(groups) for cpu in groups[node]], ranks)
    return tuple(tuple(cpus) for cpus in _within_quota(chosen, machine.cpu_quota))


def _cores_by_node(machine: Machine) -> dict[int, list[int]]:
    """The first usable CPU of each physical core, by node."""
    first: dict[int, int] = {}
    node_of: dict[int, int] = {}
    for cpu in machine.cpus:
        first[cpu.core] = min(cpu.id, first.get(cpu.core, cpu.id))
        node_of[cpu.core] = cpu.node
    groups: dict[int, list[int]] = {}
    for core, cpu_id in sorted(first.items(), key=lambda item: item[1]):
        groups.setdefault(node_of[core], []).append(cpu_id)
    return groups


def _split(cpus: list[int], ranks: int) -> list[list[int]]:
    if len(cpus) < ranks:
        return [[cpus[rank % len(cpus)]] for rank in range(ranks)]
    ends = [len(cpus) * (rank + 1) // ranks for rank in range(ranks)]
    return [cpus[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _within_quota(groups: list[list[int]], quota: float | None) -> list[list[int]]:
    if quota is None:
        return groups
    each = max(1, int(quota) // len(groups))
    return [cpus[:each] for cpus in groups]


def as_list(cpus: tuple[int, ...]) -> str:
    """The kernel's list format: (0, 1, 2, 5) is `0-2,5`."""
    parts: list[str] = []
    start = previous = cpus[0]
    for cpu in (*cpus[1:], None):
        if cpu is not None and cpu == previous + 1:
            previous = cpu
            continue
        parts.append(str(start) if start == previous else f"{start}-{previous}")
        if cpu is not None:
            start = previous = cpu
    return ",".join(parts)
