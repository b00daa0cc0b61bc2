"""What is started for a deployment on this machine: flags, environment, and what to expect."""

from dataclasses import dataclass
from pathlib import Path

from tunan.ascend.emulated import EmulatedDevices
from tunan.ascend.recipe import local_environment, local_flags
from tunan.config import Deployment
from tunan.supervisor.arguments import common_arguments, compiles, engine_arguments, own_arguments
from tunan.supervisor.directories import Directories
from tunan.supervisor.environment import PROGRESS_SOCKET, engine_environment
from tunan.supervisor.machine import look
from tunan.supervisor.memory import refuse_larger_cache
from tunan.supervisor.model_size import ModelSize

ENGINE_SOCKET = "engine.sock"
DEFAULT_BATCHED_TOKENS = 2048  # vLLM's default for its API server, a rank


@dataclass(frozen=True)
class Launch:
    """`arguments` are the launcher's, `environment` is added to ours.

    `compiles`: it compiles between loading and the first answer. `device`: where it runs, in
    words.
    """

    arguments: tuple[str, ...]
    environment: dict[str, str]
    compiles: bool
    device: str


def plan_launch(
    deployment: Deployment,
    target: str,
    size: ModelSize,
    runtime: Path,
    directories: Directories,
    emulated: EmulatedDevices | None = None,
) -> Launch:
    """How to start `deployment` here, with its sockets and temporary files in `runtime`.

    Raises `OutsideError` if it does not fit into a CPU's memory, `UsageError` for what the
    target cannot do, or a KV cache larger than the memory that is known to be there.
    """
    ours = {
        PROGRESS_SOCKET: str(runtime / "progress.sock"),
        "TMPDIR": str(runtime),  # vLLM leaves sockets and files there
    }
    socket = runtime / ENGINE_SOCKET
    if target == "cpu":
        machine = look()
        return Launch(
            tuple(engine_arguments(machine, deployment, size, socket)),
            engine_environment(machine, deployment, directories) | ours,
            compiles(deployment),
            "the CPU",
        )
    if emulated and emulated.memory and deployment.memory.kv_cache_gib is not None:
        refuse_larger_cache(
            deployment.memory.kv_cache_gib, 1, emulated.memory, "an emulated device"
        )
    arguments = (
        *own_arguments(deployment, socket),
        *common_arguments(deployment, size.has_manifest),
        *local_flags(deployment, target, emulated is not None),
        *deployment.engine_arguments,
    )
    # Apart from the CPU's: torch.compile's caches are keyed without the device behind them.
    cache = directories.cache / "ascend"
    environment = local_environment(deployment) | {
        "VLLM_CACHE_ROOT": str(cache / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
    }
    return Launch(
        arguments,
        environment | ours,
        not deployment.model.enforce_eager,
        emulated.describe() if emulated else target,
    )
