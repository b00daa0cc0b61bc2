"""vLLM's command line on a CPU: a pure function of machine, deployment and checkpoint."""

from pathlib import Path

from tunan.config import Deployment
from tunan.supervisor.machine import Machine
from tunan.supervisor.memory import kv_cache_bytes
from tunan.supervisor.model_size import ModelSize

# Pipeline stages pass buffers that vLLM's eager mode never allocates (0.32); tracing with
# the eager backend allocates them and gives the same tokens.
PIPELINE_COMPILATION = '{"mode":2,"backend":"eager"}'

# On a CPU with AMX vLLM (0.32) takes its bfloat16 kernel for MLA whatever the dtype, and ends on
# any other; it has no int8 cache either. This one takes all, and is what it uses without AMX.
LATENT_BACKEND = "CPU_MLA"

# `memory.kv_cache` as vLLM names it.
KV_CACHE_TYPES = {"auto": None, "fp8": "fp8", "int8": "int8_per_token_head"}


def engine_arguments(
    machine: Machine, deployment: Deployment, size: ModelSize, socket: Path
) -> list[str]:
    """Arguments for `python -m tunan.engine.launcher`; the server listens on the Unix `socket`.

    Raises `OutsideError` if weights and one sequence do not fit into free memory.
    """
    parallel, scheduler = deployment.parallel, deployment.scheduler
    arguments = [
        *own_arguments(deployment, socket),
        f"--kv-cache-memory-bytes={kv_cache_bytes(machine, deployment, size)}",
        *common_arguments(deployment, size.has_manifest),
    ]
    if parallel.pipeline > 1:
        arguments.append(f"--compilation-config={PIPELINE_COMPILATION}")
    elif not compiles(deployment):
        arguments.append("--enforce-eager")
    if needs_latent_backend(size, int8_cache=deployment.memory.kv_cache == "int8"):
        arguments.append(f"--attention-backend={LATENT_BACKEND}")
    if scheduler.policy == "priority":
        arguments.append("--scheduling-policy=priority")
    return [*arguments, *deployment.engine_arguments]


def needs_latent_backend(size: ModelSize, *, int8_cache: bool) -> bool:
    """Whether vLLM has to be told which kernel of MLA to take."""
    return size.latent_attention and (size.dtype != "bfloat16" or int8_cache)


def own_arguments(deployment: Deployment, socket: Path) -> list[str]:
    """Which model, and that the server listens on the Unix `socket` for the front door alone."""
    return [
        f"--model={deployment.model.path}",
        f"--served-model-name={deployment.served_model_name}",
        f"--uds={socket}",
        "--disable-uvicorn-access-log",
    ]


def compiles(deployment: Deployment) -> bool:
    """Whether the model is compiled: only if asked for.

    Eager, a start takes a quarter of the time, and bf16 tokens stay those that transformers
    gives: compiled kernels round elsewhere, which turns near ties.
    """
    return deployment.model.enforce_eager is False


def common_arguments(deployment: Deployment, has_manifest: bool) -> list[str]:
    """The flags that are the same on every target and in vLLM 0.23 and 0.32."""
    model, parallel, scheduler = deployment.model, deployment.parallel, deployment.scheduler
    choices: tuple[tuple[str, object, object], ...] = (
        ("load-format", "tunan" if has_manifest else None, None),
        ("max-model-len", model.max_model_len, None),
        ("dtype", model.dtype, "auto"),
        ("tensor-parallel-size", parallel.tensor, 1),
        ("pipeline-parallel-size", parallel.pipeline, 1),
        ("max-num-seqs", scheduler.max_num_seqs, None),
        ("max-num-batched-tokens", scheduler.max_num_batched_tokens, None),
        ("kv-cache-dtype", KV_CACHE_TYPES[deployment.memory.kv_cache], None),
    )
    flags = [f"--{name}={value}" for name, value, unset in choices if value not in (unset, None)]
    if model.trust_remote_code:
        flags.append("--trust-remote-code")
    return flags
