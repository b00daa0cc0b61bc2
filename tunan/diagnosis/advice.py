"""Which setting to change to which value, from the numbers in the message and in the log.

Not every error has numbers; what an entry's `fix` says holds with or without.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tunan.diagnosis.entry import Text
from tunan.diagnosis.findings import Finding, Findings

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
GIB = 1 << 30
# vLLM's own (0.23 and 0.32), where the log does not say another.
DEFAULTS: Mapping[str, float] = {
    "gpu_memory_utilization": 0.92,
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 256,
}
MOST_UTILIZATION = 0.95
LEAST_UTILIZATION = 0.5  # below it a model that was sized for the device hardly has a cache
PLAIN_STEP = 0.05  # of the utilization, where the message has no numbers
MARGIN = 0.02  # of the device's memory, kept free beyond what was short
FRAGMENTED = 0.05  # of the device's memory reserved and not allocated
BLOCK_TOKENS = 128  # lengths are rounded down to whole blocks of vllm-ascend's cache
LARGEST_GRID = 65535


@dataclass(frozen=True)
class Advice:
    """A change: the deployment's key or empty, and what to put on the command line or in the
    environment (empty where there is only something to look at)."""

    key: str
    setting: str
    value: float | int | str | None
    why: Text


def advice_for(cause: Finding, findings: Findings) -> tuple[Advice, ...]:
    """What the numbers advise, best first; empty where there are none or they make no sense."""
    work_out = _BY_ENTRY.get(cause.entry.id) if cause.entry else None
    if work_out is None:
        return ()
    parts = dict(cause.parts)
    for finding in findings.known:
        if finding.entry and finding.entry.id == "vllm-kv-memory-negative":
            parts.setdefault("short", finding.parts["short"])
    try:
        return work_out(parts, {**DEFAULTS, **findings.settings})
    except (ValueError, ArithmeticError):
        return ()  # a line that was cut or mixed with another: its numbers are none


def size_of(text: str) -> int:
    """`14.24 MiB` or `0 bytes` in bytes."""
    match = re.fullmatch(r"([\d.]+) ([KMG]iB|bytes)", text)
    return int(float(match[1]) * _UNITS[match[2]]) if match else 0


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"


Parts = Mapping[str, str]
Settings = Mapping[str, float]


def _out_of_memory(parts: Parts, settings: Settings) -> tuple[Advice, ...]:
    if not {"asked", "total", "free"} <= parts.keys():
        lower = _lower_utilization(settings, PLAIN_STEP, _PLAIN_SHORTAGE)
        return (*lower, *_fewer_tokens(settings))
    asked, total, free = (size_of(parts[name]) for name in ("asked", "total", "free"))
    used, reserved = (size_of(parts.get(name, "0 GiB")) for name in ("used", "reserved"))
    unused = reserved - used
    if reserved and unused >= max(asked, FRAGMENTED * total):
        why = Text(
            en=f"fragmentation: {_gib(unused)} is reserved and not allocated, {_gib(asked)} was "
            "asked for in one piece",
            zh=f"碎片：已预留未分配 {_gib(unused)}，而一次要 {_gib(asked)} 的连续内存",
        )
        return (_in_pieces(why),)
    elsewhere = total - free - reserved
    holder = (_held_elsewhere(elsewhere),) if reserved and elsewhere > total / 10 else ()
    if free > asked:
        return (_no_shortage(asked, free, total, unused), *holder)
    short = asked - free
    why = Text(
        en=f"shortage: {_gib(asked)} was asked for, {_gib(free)} of {_gib(total)} is free",
        zh=f"不足：要 {_gib(asked)}，{_gib(total)} 中只剩 {_gib(free)}",
    )
    lower = _lower_utilization(settings, short / total + MARGIN if total else PLAIN_STEP, why)
    return (*holder, *lower, *_fewer_tokens(settings))


def _no_shortage(asked: int, free: int, total: int, unused: int) -> Advice:
    """More was free than was asked for: less of it in use would change nothing."""
    en = f"no shortage by these figures: {_gib(asked)} was asked for, {_gib(free)} is free"
    zh = f"这些数字看不出不足：要 {_gib(asked)}，还有 {_gib(free)} 空闲"
    if unused >= FRAGMENTED * total > 0:
        why = Text(
            en=f"{en}; {_gib(unused)} is reserved and not allocated, so it may be fragmentation",
            zh=f"{zh}；已预留未分配 {_gib(unused)}，可能是碎片",
        )
        return _in_pieces(why)
    why = Text(
        en=f"{en}: another process or rank held the memory at that moment (`npu-smi info`), or "
        "this process has a limit of its own (a memory fraction, a container's, a vNPU's)",
        zh=f"{zh}：当时被别的进程或 rank 占用（`npu-smi info`），"
        "或本进程另有上限（显存比例、容器、vNPU）",
    )
    return Advice("", "", None, why)


def _in_pieces(why: Text) -> Advice:
    value = "expandable_segments:True"
    return Advice("", f"PYTORCH_NPU_ALLOC_CONF={value}", value, why)


_PLAIN_SHORTAGE = Text(en="the device's memory is short", zh="设备内存不足")


def _held_elsewhere(size: int) -> Advice:
    why = Text(
        en=f"{_gib(size)} is held outside this process's pool: look for another process "
        "(`npu-smi info`), then at HCCL_BUFFSIZE",
        zh=f"有 {_gib(size)} 不在本进程的内存池里：先查别的进程（`npu-smi info`），"
        "再看 HCCL_BUFFSIZE",
    )
    return Advice("", "", None, why)


def _utilization(value: float, why: Text) -> Advice:
    value = round(value, 2)
    return Advice("memory.utilization", f"--gpu-memory-utilization={value:g}", value, why)


def _lower_utilization(settings: Settings, by: float, why: Text) -> tuple[Advice, ...]:
    now = settings["gpu_memory_utilization"]
    value = max(math.floor((now - by) * 100 + 1e-6) / 100, LEAST_UTILIZATION)
    return (_utilization(value, why),) if value < now else ()


def _fewer_tokens(settings: Settings) -> tuple[Advice, ...]:
    now = int(settings["max_num_batched_tokens"])
    if now <= BLOCK_TOKENS * 2:
        return ()
    why = Text(
        en=f"half of {now} tokens a step takes half the memory for activations",
        zh=f"每步 token 从 {now} 减半，激活内存也减半",
    )
    return (_tokens(now // 2, why),)


def _tokens(count: int, why: Text) -> Advice:
    key = "scheduler.max_num_batched_tokens"
    return Advice(key, f"--max-num-batched-tokens={count}", count, why)


def _context(parts: Parts, settings: Settings) -> tuple[Advice, ...]:
    if "length" not in parts:
        return ()
    length = int(parts["length"])
    if "estimate" in parts:
        fits = int(parts["estimate"])
    elif "capacity" in parts:
        fits = int(parts["capacity"])
    else:
        fits = int(length * float(parts["available"]) / float(parts["needed"]))
    fits -= fits % BLOCK_TOKENS
    if fits <= 0:
        return _fewer_tokens(settings)
    if fits >= length:  # then it is not what was short
        return ()
    why = Text(
        en=f"the KV cache holds {fits} of the {length} tokens",
        zh=f"KV 缓存放得下 {length} 中的 {fits} 个 token",
    )
    return (Advice("model.max_model_len", f"--max-model-len={fits}", fits, why),)


def _context_of_model(parts: Parts, settings: Settings) -> tuple[Advice, ...]:
    if "most" not in parts:
        return ()
    most = int(parts["most"])
    if most >= int(parts["length"]):
        return ()
    why = Text(
        en=f"the model was made for {most} tokens, {parts['length']} were asked for",
        zh=f"模型支持 {most} 个 token，要求了 {parts['length']} 个",
    )
    return (Advice("model.max_model_len", f"--max-model-len={most}", most, why),)


def _memory_taken(parts: Parts, settings: Settings) -> tuple[Advice, ...]:
    if "free" not in parts:
        return ()
    free, total = float(parts["free"]), float(parts["total"])
    taken = Text(
        en=f"{total - free:.2f} GiB is held by others: end them, wait for the release, start again",
        zh=f"{total - free:.2f} GiB 被别人占着：结束它们，等释放后再启动",
    )
    share = math.floor(free / total * 100) / 100
    if share < LEAST_UTILIZATION:
        return (Advice("", "", None, taken),)
    fits = Text(
        en=f"or keep to the {free:.2f} GiB of {total:.2f} GiB that is free",
        zh=f"或只用空闲的 {free:.2f} GiB（共 {total:.2f} GiB）",
    )
    return (Advice("", "", None, taken), _utilization(share, fits))


def _no_cache_blocks(parts: Parts, settings: Settings) -> tuple[Advice, ...]:
    now = settings["gpu_memory_utilization"]
    short = parts.get("short")
    why = Text(
        en=f"{short} GiB is missing before the cache has any"
        if short
        else "nothing is left for the cache",
        zh=f"缓存尚未分到内存就已差 {short} GiB" if short else "没有给缓存剩下内存",
    )
    more = (_utilization(MOST_UTILIZATION, why),) if now < MOST_UTILIZATION else ()
    return (*more, *_fewer_tokens(settings))


def _hccl_buffer(parts: Parts, settings: Settings) -> tuple[Advice, ...]:
    if "needed" not in parts:
        return ()
    needed = int(parts["needed"])
    if int(parts.get("have", "0")) >= needed:
        return ()
    have = f", it has {parts['have']}" if "have" in parts else ""
    why = Text(en=f"the operator needs {needed} MB{have}", zh=f"算子需要 {needed} MB")
    return (Advice("", f"HCCL_BUFFSIZE={needed}", needed, why),)


def _graph_sizes(parts: Parts, settings: Settings) -> tuple[Advice, ...]:
    # What vLLM captures at most where nothing is set.
    default = min(2 * settings["max_num_seqs"], 512)
    now = int(settings.get("max_cudagraph_capture_size", default))
    if now < 2:
        return ()
    why = Text(
        en=f"graphs were to be captured up to size {now}; half of that takes fewer streams",
        zh=f"原要捕获到 {now}，减半可少用 stream",
    )
    return (Advice("", f"--max-cudagraph-capture-size={now // 2}", now // 2, why),)


def _grid(parts: Parts, settings: Settings) -> tuple[Advice, ...]:
    grid, now = int(parts["grid"]), int(settings["max_num_batched_tokens"])
    fits = now * LARGEST_GRID // max(grid, 1) // BLOCK_TOKENS * BLOCK_TOKENS
    if not 0 < fits < now:
        return ()
    why = Text(
        en=f"a grid of {grid} comes from {now} tokens; {LARGEST_GRID} is the most",
        zh=f"{now} 个 token 产生的 grid 为 {grid}，上限 {LARGEST_GRID}",
    )
    return (_tokens(fits, why),)


def _heads(parts: Parts, settings: Settings) -> tuple[Advice, ...]:
    heads, ranks = int(parts["heads"]), int(parts["ranks"])
    fits = next((count for count in range(ranks, 0, -1) if heads % count == 0), 1)
    if fits == ranks:
        return ()
    why = Text(en=f"{fits} divides {heads} heads", zh=f"{fits} 能整除 {heads} 个头")
    return (_tensor(fits, why),)


def _mla_heads(parts: Parts, settings: Settings) -> tuple[Advice, ...]:
    whole = int(parts["heads"]) * int(settings.get("tensor_parallel_size", 1))
    ranks = whole // 32
    if ranks < 1:
        return ()
    why = Text(en=f"32 of {whole} heads on each rank", zh=f"每个 rank 上 {whole} 个头中的 32 个")
    return (_tensor(ranks, why),)


def _tensor(ranks: int, why: Text) -> Advice:
    return Advice("parallel.tensor", f"--tensor-parallel-size={ranks}", ranks, why)


def _other_rank(parts: Parts, settings: Settings) -> tuple[Advice, ...]:
    if "remote" not in parts:
        return ()
    rank = parts["remote"]
    why = Text(
        en=f"it waited for rank {rank}: look at the log of that rank first",
        zh=f"它在等 rank {rank}：先看该 rank 的日志",
    )
    return (Advice("", "", None, why),)


def _torch_version(parts: Parts, settings: Settings) -> tuple[Advice, ...]:
    if "version" not in parts:
        return ()
    wanted = parts["version"]
    why = Text(en=f"torch {wanted} was there before", zh=f"原来需要 torch {wanted}")
    return (Advice("", f"pip install torch=={wanted}", wanted, why),)


_BY_ENTRY: Mapping[str, Callable[[Parts, Settings], tuple[Advice, ...]]] = {
    "npu-out-of-memory": _out_of_memory,
    "npu-out-of-memory-workspace": _out_of_memory,
    "npu-out-of-memory-outside-pool": _out_of_memory,
    "acl-device-memory-exhausted": _out_of_memory,
    "vllm-context-above-cache": _context,
    "vllm-context-above-cache-tokens": _context,
    "context-above-model": _context_of_model,
    "vllm-memory-taken": _memory_taken,
    "vllm-no-cache-blocks": _no_cache_blocks,
    "vllm-kv-memory-negative": _no_cache_blocks,
    "hccl-buffer-too-small": _hccl_buffer,
    "graph-streams-exhausted": _graph_sizes,
    "hardware-queues-exhausted": _graph_sizes,
    "triton-grid-too-large": _grid,
    "heads-not-divisible": _heads,
    "mla-head-count": _mla_heads,
    "hccl-notify-timeout": _other_rank,
    "torch-version-conflict": _torch_version,
}
