"""Changes of a deployment that are safe to make without asking: they give up speed or length, never
correctness, and stop at floors."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tunan.config import Deployment
from tunan.diagnosis.advice import (
    BLOCK_TOKENS,
    DEFAULTS,
    LEAST_UTILIZATION,
    PLAIN_STEP,
)
from tunan.diagnosis.diagnose import Diagnosis

Kind = Literal[
    "wait for release",
    "growing segments",
    "lower utilization",
    "fewer batched tokens",
    "shorter context",
    "larger HCCL buffer",
    "fewer graph sizes",
]


@dataclass(frozen=True)
class Floors:
    """What a remedy does not go below, or (the buffer) above; sizes in MB, times in seconds."""

    utilization: float = LEAST_UTILIZATION
    max_num_batched_tokens: int = 512
    max_model_len: int = 2048
    graph_size: int = 8
    hccl_buffer_mb: int = 4096
    release_s: float = 60


@dataclass(frozen=True)
class Remedy:
    """One change. `deployment` is the one to start next; `environment` is to be added to the
    engine's; `wait_s` is how long to wait before the start at most, for memory to be released.
    `what` says it in one line."""

    kind: Kind
    what: str
    deployment: Deployment
    environment: Mapping[str, str] = field(default_factory=dict)
    wait_s: float = 0


def remedy_for(
    diagnosis: Diagnosis,
    deployment: Deployment,
    *,
    applied: Collection[str] = (),
    floors: Floors = Floors(),
) -> Remedy | None:
    """The next remedy for what was diagnosed, None if there is none or all are at their floors.

    `applied`: the kinds that have been tried, each of which is offered once. Pure: it looks at
    nothing but its arguments.
    """
    for work_out in _BY_ENTRY.get(diagnosis.id, ()):
        for remedy in work_out(diagnosis, deployment, floors):
            if remedy.kind not in applied:
                return remedy
    return None


Remedies = Iterator[Remedy]
_ALLOCATOR = "PYTORCH_NPU_ALLOC_CONF"


def _wait(diagnosis: Diagnosis, deployment: Deployment, floors: Floors) -> Remedies:
    what = f"waiting up to {floors.release_s:g} s for another process to release the device"
    yield Remedy("wait for release", what, deployment, wait_s=floors.release_s)


def _wait_unless_short(diagnosis: Diagnosis, deployment: Deployment, floors: Floors) -> Remedies:
    """Where more was free than was asked for less of it in use changes nothing: somebody else held
    the memory at that moment."""
    parts = diagnosis.cause.parts if diagnosis.cause else {}
    changes = any(advice.setting for advice in diagnosis.advice)
    if "free" in parts and diagnosis.advice and not changes:
        yield from _wait(diagnosis, deployment, floors)


def _in_segments_that_grow(
    diagnosis: Diagnosis, deployment: Deployment, floors: Floors
) -> Remedies:
    """Against fragmentation; it takes nothing from the cache, so it comes first."""
    advised = next((a.value for a in diagnosis.advice if a.setting.startswith(_ALLOCATOR)), None)
    if isinstance(advised, str):
        what = f"{_ALLOCATOR}={advised}"
        yield Remedy("growing segments", what, deployment, {_ALLOCATOR: advised})


def _lower_utilization(diagnosis: Diagnosis, deployment: Deployment, floors: Floors) -> Remedies:
    """By as much as was short; the log may say another utilization than the deployment's."""
    name = "gpu_memory_utilization"
    logged = diagnosis.settings.get(name, DEFAULTS[name])
    advised = _advised(diagnosis, "memory.utilization")
    by = logged - advised if advised is not None else PLAIN_STEP
    yield from _utilization(deployment, deployment.memory.utilization - by, floors)


def _what_is_free(diagnosis: Diagnosis, deployment: Deployment, floors: Floors) -> Remedies:
    advised = _advised(diagnosis, "memory.utilization")
    if advised is not None:
        yield from _utilization(deployment, advised, floors)


def _utilization(deployment: Deployment, value: float, floors: Floors) -> Remedies:
    now = deployment.memory.utilization
    value = max(math.floor(value * 100 + 1e-6) / 100, floors.utilization)
    if value < now:
        memory = deployment.memory.model_copy(update={"utilization": value})
        what = f"memory.utilization {now:g} -> {value:g}"
        yield Remedy("lower utilization", what, _with(deployment, memory=memory))


def _fewer_tokens(diagnosis: Diagnosis, deployment: Deployment, floors: Floors) -> Remedies:
    now = deployment.scheduler.max_num_batched_tokens or int(
        diagnosis.settings.get("max_num_batched_tokens", DEFAULTS["max_num_batched_tokens"])
    )
    value = max(now // 2, floors.max_num_batched_tokens)
    if value < now:
        scheduler = deployment.scheduler.model_copy(update={"max_num_batched_tokens": value})
        what = f"scheduler.max_num_batched_tokens {now} -> {value}"
        yield Remedy("fewer batched tokens", what, _with(deployment, scheduler=scheduler))


def _shorter_context(diagnosis: Diagnosis, deployment: Deployment, floors: Floors) -> Remedies:
    now = deployment.model.max_model_len or int(diagnosis.settings.get("max_model_len", 0))
    advised = _advised(diagnosis, "model.max_model_len")
    value = int(advised if advised is not None else now // 2 // BLOCK_TOKENS * BLOCK_TOKENS)
    if advised is not None and value < floors.max_model_len:
        return  # what fits is below the floor: a longer context would fail again
    value = max(value, floors.max_model_len)
    if now and value >= now:
        return
    if now or advised is not None:
        model = deployment.model.model_copy(update={"max_model_len": value})
        what = f"model.max_model_len {now or 'as in config.json'} -> {value}"
        yield Remedy("shorter context", what, _with(deployment, model=model))


def _larger_buffer(diagnosis: Diagnosis, deployment: Deployment, floors: Floors) -> Remedies:
    needed = next(
        (a.value for a in diagnosis.advice if a.setting.startswith("HCCL_BUFFSIZE=")), None
    )
    if isinstance(needed, int) and 0 < needed <= floors.hccl_buffer_mb:
        environment = {"HCCL_BUFFSIZE": str(needed)}
        what = f"HCCL_BUFFSIZE={needed}"
        yield Remedy("larger HCCL buffer", what, deployment, environment)


_GRAPH_FLAG = "--max-cudagraph-capture-size"


def _fewer_graphs(diagnosis: Diagnosis, deployment: Deployment, floors: Floors) -> Remedies:
    advised = next((a.value for a in diagnosis.advice if a.setting.startswith(_GRAPH_FLAG)), None)
    # Sizes that the user listed are his own.
    if not isinstance(advised, int) or any("cudagraph" in a for a in deployment.engine_arguments):
        return
    value = max(advised, floors.graph_size)
    arguments = (*deployment.engine_arguments, f"{_GRAPH_FLAG}={value}")
    what = f"{_GRAPH_FLAG}={value}"
    yield Remedy("fewer graph sizes", what, _with(deployment, engine_arguments=arguments))


def _advised(diagnosis: Diagnosis, key: str) -> float | None:
    values = (advice.value for advice in diagnosis.advice if advice.key == key)
    return next((float(value) for value in values if isinstance(value, int | float)), None)


def _with(deployment: Deployment, **changes: object) -> Deployment:
    return deployment.model_copy(update=changes)


_Step = Callable[[Diagnosis, Deployment, Floors], Remedies]
_MEMORY: tuple[_Step, ...] = (
    _in_segments_that_grow,
    _wait_unless_short,
    _lower_utilization,
    _fewer_tokens,
    _shorter_context,
)
_BY_ENTRY: Mapping[str, tuple[_Step, ...]] = {
    "npu-out-of-memory": _MEMORY,
    "npu-out-of-memory-workspace": _MEMORY,
    "npu-out-of-memory-outside-pool": _MEMORY,
    "cann-allocation-failed": _MEMORY,
    "acl-device-memory-exhausted": _MEMORY,
    "vllm-no-cache-blocks": (_fewer_tokens, _shorter_context),
    "vllm-context-above-cache": (_shorter_context,),
    "vllm-context-above-cache-tokens": (_shorter_context,),
    "vllm-memory-taken": (_wait, _what_is_free),
    "hccp-still-running": (_wait,),
    "hccl-buffer-too-small": (_larger_buffer,),
    "graph-streams-exhausted": (_fewer_graphs,),
    "hardware-queues-exhausted": (_fewer_graphs,),
}
