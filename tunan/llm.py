"""`LLM` and `SamplingParams` for Python: vLLM's own, with the defaults `tunan serve` uses."""

import os
from pathlib import Path
from typing import Any

from tunan.config import deployment_from
from tunan.errors import UsageError
from tunan.notices import warn

_TARGET_OF_DEVICE = {None: "auto", "auto": "auto", "cpu": "cpu", "npu": "ascend910b"}


class SamplingParams:
    """Makes a `vllm.SamplingParams`; takes the same arguments."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        import vllm

        return vllm.SamplingParams(*args, **kwargs)


class LLM:
    """Makes a `vllm.LLM` for a checkpoint directory, with what Tunan knows about the machine.

    >>> from tunan import LLM, SamplingParams
    >>> if __name__ == "__main__":
    ...     llm = LLM("/models/deepseek-7b")
    ...     answers = llm.generate(["Hello"], SamplingParams(max_tokens=8))

    `model` is a directory; it is loaded by Tunan's loader if `tunan convert` wrote it. On a
    CPU all cores are used, the KV cache is sized from free memory and what is compiled is kept
    for the next start. Every argument of `vllm.LLM` may be given and wins, and:

    - `device`: "cpu" or "npu"; what older vLLM had. vLLM has one platform an installation,
      so this checks that it is there instead of choosing.
    - `tensor_parallel_size`: ranks; on a CPU one a NUMA node.
    - `swap_space`: ignored with a warning: vLLM recomputes what it preempts.

    The engine's processes are spawned, so a script needs the `__main__` guard, and only they
    get the preloaded libraries (`LD_PRELOAD` cannot change the running process; nothing heavy
    runs in it). Raises `UsageError` for a bad argument, `OutsideError` for a missing NPU or
    too little memory.
    """

    def __new__(
        cls,
        model: str | os.PathLike[str],
        *,
        device: str | None = None,
        tensor_parallel_size: int = 1,
        swap_space: float | None = None,
        **kwargs: Any,
    ) -> Any:
        if swap_space:
            warn("swap_space is ignored: this vLLM recomputes preempted requests instead")
        arguments = _cpu_or_npu_arguments(model, device, tensor_parallel_size, kwargs)
        import vllm

        return vllm.LLM(**{**arguments, **kwargs})


def _cpu_or_npu_arguments(
    model: str | os.PathLike[str], device: str | None, ranks: int, kwargs: dict[str, Any]
) -> dict[str, Any]:
    from tunan.ascend.emulated import EmulatedDevices
    from tunan.ascend.target import require, resolve_target
    from tunan.config.deployment import Parallel

    if device not in _TARGET_OF_DEVICE:
        raise UsageError(f"device: {device!r} is not known; use 'cpu' or 'npu'")
    emulated = EmulatedDevices.of(os.environ)
    target = resolve_target(_TARGET_OF_DEVICE[device], emulated)
    path = Path(model)
    arguments: dict[str, Any] = {"model": str(path), "tensor_parallel_size": ranks}
    if (path / "tunan.json").is_file():
        arguments["load_format"] = "tunan"
    if target != "cpu":
        require(target, Parallel(tensor=ranks), emulated)
        return arguments
    return arguments | _cpu_arguments(path, ranks, kwargs)


def _cpu_arguments(path: Path, ranks: int, kwargs: dict[str, Any]) -> dict[str, Any]:
    from tunan.supervisor.arguments import (
        KV_CACHE_TYPES,
        LATENT_BACKEND,
        compiles,
        needs_latent_backend,
    )
    from tunan.supervisor.directories import Directories
    from tunan.supervisor.environment import engine_environment
    from tunan.supervisor.machine import look
    from tunan.supervisor.memory import kv_cache_bytes
    from tunan.supervisor.model_size import measure

    values: dict[str, Any] = {"path": str(path)}
    if isinstance(length := kwargs.get("max_model_len"), int):
        values["max_model_len"] = length
    deployment = deployment_from({"model": values, "parallel": {"tensor": ranks}}, "LLM")
    machine = look()
    for name, value in engine_environment(machine, deployment, Directories.of_user()).items():
        os.environ.setdefault(name, value)
    arguments: dict[str, Any] = {"enforce_eager": not compiles(deployment)}
    size = measure(path, str(kwargs.get("dtype", "auto")).removeprefix("torch."))
    int8_cache = kwargs.get("kv_cache_dtype") == KV_CACHE_TYPES["int8"]
    if needs_latent_backend(size, int8_cache=int8_cache):
        arguments["attention_backend"] = LATENT_BACKEND
    if "kv_cache_memory_bytes" not in kwargs and "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
        arguments["kv_cache_memory_bytes"] = kv_cache_bytes(machine, deployment, size)
    return arguments
