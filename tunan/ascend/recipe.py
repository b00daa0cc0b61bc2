"""The vllm + vllm-ascend command for each machine of a deployment.

Flags and variables were checked against the sources of vllm 0.23.0 and vllm-ascend 0.23.0
(its DeepSeek-R1 and multi-node tutorials); those for one machine run on emulated devices, nothing
here has run on an NPU.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from tunan.config import Deployment
from tunan.errors import UsageError
from tunan.targets import family_of

GIB = 1 << 30
MASTER_PORT = 29501
DATA_PARALLEL_PORT = 13389
# One allow-list for all plugin groups: without its own names here vllm-ascend's platform
# would not load.
PLUGINS = (
    "ascend",
    "ascend_kv_connector",
    "ascend_model_loader",
    "ascend_service_profiling",
    "ascend_model",
    "tunan",
)
# What is sourced: of each the first that is there. CANN 8.5 and newer install themselves into
# `cann` (the vendor's installation guide); those before, and vllm-ascend's own image of CANN 9.1.0,
# have the other.
SET_ENV = (
    (
        "/usr/local/Ascend/cann/set_env.sh",
        "/usr/local/Ascend/ascend-toolkit/set_env.sh",
    ),
    ("/usr/local/Ascend/nnal/atb/set_env.sh",),
)


@dataclass(frozen=True)
class NodeCommand:
    """What to run on one machine. `address` is None when there is only this one.

    In `arguments` and `environment` `$NIC` stands for the network interface that has `address`,
    and `$ADDRESS` for what the name `address` leads to, where it is a name.
    """

    address: str | None
    environment: dict[str, str]
    arguments: tuple[str, ...]


def node_commands(
    deployment: Deployment, target: str, flags: tuple[str, ...]
) -> tuple[NodeCommand, ...]:
    """One command a machine, the head first; `flags` are those common to all targets.

    Raises `UsageError` if the ranks cannot be spread evenly over the machines, or for a
    type that the target has no kernels for.
    """
    nodes = deployment.nodes or (None,)
    ranks = deployment.parallel.world_size
    if ranks % len(nodes):
        raise UsageError(
            f"parallel: {ranks} ranks (tensor x pipeline x data) cannot be spread evenly over "
            f"{len(nodes)} nodes"
        )
    copies = deployment.parallel.data
    if copies > 1 and copies % len(nodes):
        raise UsageError(
            f"parallel.data: {copies} copies cannot be spread evenly over {len(nodes)} nodes; each "
            "has to be on one machine"
        )
    _check_types(deployment, target)
    config = _checkpoint_config(deployment.model.path)
    serve = (
        "vllm",
        "serve",
        str(deployment.model.path),
        f"--served-model-name={deployment.served_model_name}",
        *flags,
        *_ascend_flags(deployment, target, config, binds_cpus=True),
        *deployment.engine_arguments,
    )
    return tuple(
        NodeCommand(
            address,
            _environment(deployment, address, ranks // len(nodes)) | _of_family(deployment, target),
            (*serve, *_place(deployment, index)),
        )
        for index, address in enumerate(nodes)
    )


def local_flags(deployment: Deployment, target: str, emulated: bool) -> list[str]:
    """The flags only Ascend needs, for an engine on this machine. Raises `UsageError`.

    Emulated devices have no CPUs near them, and no npu-smi to ask.
    """
    _check_types(deployment, target)
    config = _checkpoint_config(deployment.model.path)
    return _ascend_flags(deployment, target, config, binds_cpus=not emulated)


def local_environment(deployment: Deployment) -> dict[str, str]:
    """The variables to add for an engine on this machine. Raises `UsageError`."""
    return _environment(deployment, None, deployment.parallel.world_size)


def _check_types(deployment: Deployment, target: str) -> None:
    if deployment.memory.kv_cache == "fp8":
        raise UsageError("memory.kv_cache: fp8 has no kernels on Ascend A2, A3 and 310P; use auto")
    if deployment.memory.kv_cache == "int8":
        raise UsageError(
            "memory.kv_cache: int8 is for CPUs; on Ascend the checkpoint says so itself, use auto"
        )
    if target == "ascend310p" and deployment.model.dtype not in ("auto", "float16"):
        raise UsageError("model.dtype: the 310P has float16 only; use float16 or auto")
    if deployment.parallel.pipeline > 1 and _predicts_tokens(deployment.engine_arguments):
        raise UsageError(
            "parallel.pipeline: vllm-ascend refuses multi-token prediction (--speculative-config "
            "with mtp) in a pipeline; leave one of the two out"
        )


def _predicts_tokens(arguments: tuple[str, ...]) -> bool:
    """Whether vLLM is told to speculate with a model's own MTP layers."""
    words = " ".join(arguments).replace("_", "-")
    given = words.partition("--speculative-config")[2].split(" --")[0]
    return "mtp" in given.lower()


def _ascend_flags(
    deployment: Deployment, target: str, config: Mapping[str, Any], binds_cpus: bool
) -> list[str]:
    memory = deployment.memory
    flags = [f"--gpu-memory-utilization={memory.utilization}"]
    if memory.kv_cache_gib is not None:
        flags.append(f"--kv-cache-memory-bytes={int(memory.kv_cache_gib * GIB)}")
    if target == "ascend310p" and deployment.model.dtype == "auto":
        flags.append("--dtype=float16")
    modelslim = (deployment.model.path / "quant_model_description.json").is_file()
    if modelslim and not _is_given("--quantization", deployment):
        flags.append("--quantization=ascend")
    experts = config.get("n_routed_experts") or config.get("num_experts")
    if experts and not _is_given("--enable-expert-parallel", deployment):
        flags.append("--enable-expert-parallel")
    if deployment.scheduler.policy == "priority":
        flags.append("--scheduling-policy=priority")
    if deployment.model.enforce_eager:
        flags.append("--enforce-eager")
    else:
        flags.append(f"--compilation-config={json.dumps({'cudagraph_mode': 'FULL_DECODE_ONLY'})}")
    return [*flags, f"--additional-config={json.dumps({'enable_cpu_binding': binds_cpus})}"]


def _is_given(flag: str, deployment: Deployment) -> bool:
    """Whether the deployment hands `flag` to vLLM itself."""
    given = (argument.split("=", 1)[0] for argument in deployment.engine_arguments)
    return flag in (name.replace("_", "-") for name in given)


def _place(deployment: Deployment, index: int) -> list[str]:
    """Where this machine stands among the others, and the API of the head."""
    listen = [f"--host={deployment.gateway.host}", f"--port={deployment.gateway.port}"]
    if deployment.parallel.data > 1:
        return _copies(deployment, index, listen)
    if len(deployment.nodes) < 2:
        return listen
    place = [
        "--distributed-executor-backend=mp",
        f"--nnodes={len(deployment.nodes)}",
        f"--node-rank={index}",
        f"--master-addr={deployment.nodes[0]}",
        f"--master-port={MASTER_PORT}",
    ]
    return [*listen, *place] if index == 0 else [*place, "--headless"]


def _copies(deployment: Deployment, index: int, listen: list[str]) -> list[str]:
    """Data parallelism: the head hands the requests of its API to the copies on every machine."""
    total, nodes = deployment.parallel.data, deployment.nodes
    flags = [f"--data-parallel-size={total}"]
    if len(nodes) < 2:
        return [*listen, *flags]
    here = total // len(nodes)
    flags += [
        f"--data-parallel-size-local={here}",
        # The head listens there itself, and ZeroMQ binds addresses, not names.
        f"--data-parallel-address={nodes[0] if index else _own(nodes[0])}",
        f"--data-parallel-rpc-port={DATA_PARALLEL_PORT}",
    ]
    if index == 0:
        return [*listen, *flags]
    return [*flags, f"--data-parallel-start-rank={index * here}", "--headless"]


def _of_family(deployment: Deployment, target: str) -> dict[str, str]:
    """Between A2 machines the experts' exchange goes over PCIe inside of one, RoCE between them;
    so vllm-ascend's tutorial of DeepSeek-R1 has it."""
    if deployment.parallel.data < 2 or len(deployment.nodes) < 2:
        return {}
    if family_of(target) != "ascend910b":
        return {}
    return {"HCCL_INTRA_PCIE_ENABLE": "1", "HCCL_INTRA_ROCE_ENABLE": "0"}


def _own(address: str) -> str:
    return address if is_address(address) else "$ADDRESS"


def _environment(deployment: Deployment, address: str | None, local_ranks: int) -> dict[str, str]:
    devices = deployment.parallel.devices or tuple(range(local_ranks))
    if len(devices) < local_ranks:
        raise UsageError(
            f"parallel.devices names {len(devices)} devices, each node needs {local_ranks}"
        )
    environment = {
        "VLLM_PLUGINS": ",".join(PLUGINS),
        "ASCEND_RT_VISIBLE_DEVICES": ",".join(str(device) for device in devices[:local_ranks]),
        "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
        "HCCL_OP_EXPANSION_MODE": "AIV",
        "TASK_QUEUE_ENABLE": "1",
        "OMP_PROC_BIND": "false",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    if deployment.parallel.layer_partition is not None:
        layers = ",".join(str(count) for count in deployment.parallel.layer_partition)
        environment["VLLM_PP_LAYER_PARTITION"] = layers
    if address is not None and len(deployment.nodes) > 1:
        own = _own(address)
        environment |= {
            "HCCL_IF_IP": own,
            "VLLM_HOST_IP": own,
            "HCCL_SOCKET_IFNAME": "$NIC",
            "GLOO_SOCKET_IFNAME": "$NIC",
            "TP_SOCKET_IFNAME": "$NIC",
        }
    return environment


def is_address(node: str) -> bool:
    """Whether a machine is named by its IPv4 or IPv6 address, not by a name."""
    try:
        ip_address(node)
    except ValueError:
        return False
    return True


def _checkpoint_config(path: Path) -> dict[str, Any]:
    """config.json if the checkpoint is on this machine; printing does not need it."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}
