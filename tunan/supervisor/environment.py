"""The environment of the engine's processes on a CPU: a pure function of machine and deployment."""

from collections.abc import Mapping
from pathlib import Path

from tunan.config import Deployment
from tunan.supervisor.arguments import compiles
from tunan.supervisor.cpu_layout import as_list, cpus_of_ranks
from tunan.supervisor.directories import Directories
from tunan.supervisor.machine import Machine

# The launcher binds a single rank to these CPUs itself; vLLM binds several ranks.
ENGINE_CPUS = "TUNAN_ENGINE_CPUS"
PROGRESS_SOCKET = "TUNAN_PROGRESS_SOCKET"

# Set by schedulers and shells for other programs' sake; what we found by looking is better.
_OURS_ALWAYS = frozenset(
    {"OMP_NUM_THREADS", "KMP_AFFINITY", "KMP_BLOCKTIME", "LD_PRELOAD", "TMPDIR"}
)


def engine_environment(
    machine: Machine, deployment: Deployment, directories: Directories
) -> dict[str, str]:
    """Variables to add to the engine's environment; the same input gives the same answer."""
    ranks = cpus_of_ranks(machine, deployment.parallel.world_size)
    environment = {
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        # The ahead-of-time cache never reloads on a CPU, so it would compile on every start.
        "VLLM_USE_AOT_COMPILE": "0",
        "VLLM_CACHE_ROOT": str(directories.cache / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(directories.cache / "inductor"),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(as_list(cpus) for cpus in ranks),
        "OMP_NUM_THREADS": str(max(len(cpus) for cpus in ranks)),
    }
    if not compiles(deployment):
        # Or the first request for logprobs compiles one small function of the sampler, while the
        # streams of all others wait: for ten seconds, or a minute where cores are few.
        environment["TORCH_COMPILE_DISABLE"] = "1"
    if deployment.parallel.layer_partition is not None:
        layers = ",".join(str(count) for count in deployment.parallel.layer_partition)
        environment["VLLM_PP_LAYER_PARTITION"] = layers
    if preload := [str(path) for path in (machine.tcmalloc, machine.openmp) if path]:
        environment["LD_PRELOAD"] = ":".join(preload)
    if len(ranks) == 1:
        environment |= _single_rank(machine, ranks[0])
    return environment


def _single_rank(machine: Machine, cpus: tuple[int, ...]) -> dict[str, str]:
    variables = {ENGINE_CPUS: as_list(cpus)}
    if _is_intel_openmp(machine.openmp):
        # Threads pinned one by one wait for whatever else runs on "their" core; a set of
        # CPUs for the whole process keeps the NUMA node and lets the kernel choose.
        # After 5 ms without work a thread sleeps instead of taking time from the others.
        variables |= {"KMP_AFFINITY": "none", "KMP_BLOCKTIME": "5", "KMP_TPAUSE": "0"}
    return variables


def _is_intel_openmp(library: Path | None) -> bool:
    return library is not None and "iomp" in library.name


def with_users_choice(ours: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, str]:
    """The child's whole environment: what the user exported wins, libraries to preload add up."""
    merged = {**ours, **theirs}
    merged |= {name: ours[name] for name in _OURS_ALWAYS if name in ours}
    preload = [path for path in (ours.get("LD_PRELOAD"), theirs.get("LD_PRELOAD")) if path]
    if preload:
        merged["LD_PRELOAD"] = ":".join(preload)
    return merged
