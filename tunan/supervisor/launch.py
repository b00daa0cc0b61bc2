"""What is started for a deployment on this machine: flags, environment, and what to expect."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tunan.ascend.emulated import EmulatedDevices
from tunan.ascend.recipe import local_environment, local_flags
from tunan.config import Deployment
from tunan.errors import UsageError
from tunan.supervisor.arguments import common_arguments, compiles, engine_arguments, own_arguments
from tunan.supervisor.directories import Directories
from tunan.supervisor.environment import PROGRESS_SOCKET, engine_environment
from tunan.supervisor.machine import Machine, look
from tunan.supervisor.memory import refuse_larger_cache
from tunan.supervisor.model_size import ModelSize
from tunan.supervisor.shares import device_shares, machine_shares

ENGINE_SOCKET = "engine.sock"
DEFAULT_BATCHED_TOKENS = 2048  # vLLM's default for its API server, a rank


@dataclass(frozen=True)
class Launch:
    """`arguments` are the launcher's, `environment` is added to ours.

    `compiles`: it compiles between loading and the first answer. `device`: where it runs, in
    words. `directory`: of its sockets and files. `devices`: numbers of its NPUs, none on a CPU.
    """

    arguments: tuple[str, ...]
    environment: dict[str, str]
    compiles: bool
    device: str
    directory: Path
    devices: tuple[int, ...] = ()


Relaunch = Callable[[Deployment], Launch]


def launchers_of(
    deployment: Deployment,
    target: str,
    size: ModelSize,
    runtime: Path,
    directories: Directories,
    emulated: EmulatedDevices | None = None,
) -> tuple[tuple[Deployment, Relaunch], ...]:
    """For each replica that is started here, the active ones first, its deployment and what says
    how to start it, with these settings or others: as `plan_launch`, and raises as that does.

    Replica 1 has its sockets and files in `runtime / "1"`. Raises `UsageError` if cores or devices
    do not suffice for all.
    """
    return tuple(
        (
            share,
            partial(
                plan_launch,
                target=target,
                size=size,
                runtime=runtime / str(number),
                directories=directories,
                emulated=emulated,
                machine=machine,
            ),
        )
        for number, (share, machine) in enumerate(shares_of(deployment, target))
    )


def shares_of(deployment: Deployment, target: str) -> list[tuple[Deployment, Machine | None]]:
    """For each replica that is started here its deployment and, on a CPU, its part of the machine.

    Raises `UsageError` if cores or devices do not suffice for all.
    """
    if not deployment.replicas.managed:
        return []
    if target == "cpu":
        return [(deployment, part) for part in machine_shares(look(), deployment.replicas)]
    return [(share, None) for share in device_shares(deployment)]


def plan_launch(
    deployment: Deployment,
    target: str,
    size: ModelSize,
    runtime: Path,
    directories: Directories,
    emulated: EmulatedDevices | None = None,
    machine: Machine | None = None,
) -> Launch:
    """How to start one replica of `deployment` here, with its sockets and files in `runtime`.

    `machine` is what it may use of this one, None for all. Raises `OutsideError` if it does not
    fit into a CPU's memory, `UsageError` for what the target cannot do, or a KV cache larger than
    the memory that is known to be there.
    """
    if deployment.parallel.data > 1:
        raise UsageError(
            f"parallel.data: {deployment.parallel.data} copies are for NPUs, and not started from "
            "here in this version; `tunan serve --print-command` prints the command"
        )
    ours = {
        PROGRESS_SOCKET: str(runtime / "progress.sock"),
        "TMPDIR": str(runtime),  # vLLM leaves sockets and files there
        # Where CI is set torch refuses an operator that returns its input, as vLLM's
        # maybe_pad_and_reduce does on one rank; elsewhere it only warns.
        "TORCHINDUCTOR_ERROR_ON_CUSTOM_OP_ALIASING": "0",
    }
    socket = runtime / ENGINE_SOCKET
    if target == "cpu":
        machine = machine or look()
        return Launch(
            tuple(engine_arguments(machine, deployment, size, socket)),
            engine_environment(machine, deployment, directories) | ours,
            compiles(deployment),
            "the CPU",
            runtime,
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
        runtime,
        deployment.parallel.devices or tuple(range(deployment.parallel.world_size)),
    )
