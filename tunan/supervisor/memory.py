"""How large the KV cache of one rank may be: from what is free, not a share of the total.

vLLM's own rule takes 90 % of the machine and refuses to start when that is not free; ours
takes what the deployment allows of what *is* free, after the weights, and asks for no more
than eight sequences of full length.
"""

from tunan.config import Deployment
from tunan.errors import OutsideError, UsageError
from tunan.supervisor.cpu_layout import cpus_of_ranks
from tunan.supervisor.machine import Machine
from tunan.supervisor.model_size import ModelSize

GIB = 1 << 30
BLOCK_TOKENS = 128  # vLLM's KV block on a CPU
# vLLM touches every page of its cache at start, so one that is larger than requests can use
# costs start-up time (0.4 s a GiB) and other programs' memory. Eight sequences of full length
# hold many more of usual length.
FULL_SEQUENCES = 8
# A process with torch and vLLM in it, and working memory of one step.
PROCESS_BYTES = int(0.75 * GIB)
# Beside the mapped file, repacking for oneDNN may hold every weight once more.
ROOMY_WEIGHTS, TIGHT_WEIGHTS = 2.0, 1.1


def kv_cache_bytes(machine: Machine, deployment: Deployment, size: ModelSize) -> int:
    """Bytes of KV cache for one rank, at least enough for one sequence of full length.

    Raises `OutsideError` saying what is needed, what is free and which max_model_len fits, and
    `UsageError` if the caches asked for are larger than the machine's memory.
    """
    memory, ranks = deployment.memory, deployment.parallel.world_size
    if memory.kv_cache_gib is not None:
        refuse_larger_cache(memory.kv_cache_gib, ranks, machine.memory_total, _whose(machine))
        return int(memory.kv_cache_gib * GIB)
    per_token = -(-size.kv_bytes_per_token // ranks)
    length = deployment.model.max_model_len or size.max_len
    need = (-(-length // BLOCK_TOKENS) + 1) * BLOCK_TOKENS * per_token
    usable = int(memory.utilization * _free_of_one_rank(machine, ranks))
    sequences = min(FULL_SEQUENCES, deployment.scheduler.max_num_seqs or FULL_SEQUENCES)
    for factor in (ROOMY_WEIGHTS, TIGHT_WEIGHTS):
        left = usable - PROCESS_BYTES - int(factor * size.weights / ranks)
        if left >= need:
            return min(left, need * sequences)
    problem = _too_little(usable, size.weights // ranks, need, left, per_token, length)
    if machine.replicas > 1:
        problem += f" (each of {machine.replicas} replicas has an even share; or start fewer)"
    raise OutsideError(problem)


def refuse_larger_cache(gib: float, ranks: int, total: int, whose: str) -> None:
    """Raises `UsageError` if `ranks` caches of `gib` each cannot be in `total` bytes of memory."""
    if gib * GIB * ranks > total:
        caches = f"{gib:g} GiB" + (f" for each of {ranks} ranks" if ranks > 1 else "")
        raise UsageError(
            f"memory.kv_cache_gib: {caches} is more than the {total / GIB:.1f} GiB of memory that "
            f"{whose} has; lower it"
        )


def _whose(machine: Machine) -> str:
    if machine.replicas == 1:
        return "this machine"
    return f"each of {machine.replicas} replicas"


def _free_of_one_rank(machine: Machine, ranks: int) -> int:
    node_of = {cpu.id: cpu.node for cpu in machine.cpus}
    homes = [node_of[cpus[0]] for cpus in cpus_of_ranks(machine, ranks)]
    shares = (machine.node_free[node] // homes.count(node) for node in homes)
    return min(machine.memory_free // ranks, *shares)


def _too_little(
    usable: int, weights: int, need: int, left: int, per_token: int, length: int
) -> str:
    fitting = max(0, left // per_token // BLOCK_TOKENS - 1) * BLOCK_TOKENS
    advice = (
        f"set model.max_model_len to {fitting} or less"
        if fitting
        else "free memory, or raise memory.utilization"
    )
    return (
        f"not enough memory: weights take {weights / GIB:.1f} GiB, one sequence of {length} "
        f"tokens {need / GIB:.2f} GiB and the process {PROCESS_BYTES / GIB:.2f} GiB, but only "
        f"{max(0, usable) / GIB:.1f} GiB may be used; {advice}"
    )
