"""Generated logs of an engine with several ranks, in the layout of vLLM's, with an error in it.

What surrounds the error is what surrounds it in real logs: settings, metrics, requests, warnings
that sound worse than they are, the same failure told again by other processes, and the ranks
that waited for the one that failed. Everything is made of a seed.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_DECOYS = (
    "WARNING {t} [system_utils.py:299] Found ulimit of 1024 and failed to raise it. This can cause "
    "errors like `OSError: [Errno 24] Too many open files`. Consider ulimit -n",
    "WARNING {t} [utils.py:461] Failed to register custom ops, they are off. "
    "error=libregister.so: cannot open shared object file: No such file or directory.",
    "WARNING {t} [camem.py:67] Failed to import the allocator: libascend_hal.so: cannot open "
    "shared object file: No such file or directory. Sleep mode will be disabled.",
    "INFO {t} [arg_utils.py:12] bfloat16 is not supported by the draft model, float16 is taken",
    "WARNING {t} [api_utils.py:7] TimeoutError: the metrics server did not answer",
    "INFO {t} [config.py:3] HCCL_BUFFSIZE=200 HCCL_CONNECT_TIMEOUT=120 HCCL_EXEC_TIMEOUT=1800",
    "WARNING {t} [importing.py:8] port 8080: Address already in use, 8081 is taken instead",
)
_ORDINARY = (
    "INFO {t} [loggers.py:257] Engine 000: Avg prompt throughput: {a}.{b} tokens/s, Avg generation "
    "throughput: {b}.{a} tokens/s, Running: {a} reqs, Waiting: 0 reqs, GPU KV cache usage: {b}.0%",
    "INFO {t} [model_runner.py:81] Loading weights took {a}.{b} seconds",
    "INFO {t} [worker.py:310] Available KV cache memory: {a}.{b} GiB",
    "INFO {t} [kv_cache_utils.py:9] GPU KV cache size: {a}{b}0 tokens",
    "DEBUG {t} [scheduler.py:77] step {a} took {b} ms, error budget {a} ms",
    "INFO {t} [parallel_state.py:5] rank {a} in world size 8 is assigned as TP rank {b}",
    "INFO {t} [weight_utils.py:4] device {a}: 0 errors in {b} blocks",
)
_PLAIN = (
    'INFO:     127.0.0.1:{a}{b} - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    "Loading safetensors checkpoint shards:  {a}% Completed | {b}/99 [00:{a}<00:{b}, 1.00it/s]",
    "[rank{r}]:[W1130 21:25:20.36{a}{b} Allocator.cpp:168] Warning: sizes are padded to 32.",
    "/x/torch/y.py:{a}: FutureWarning: `a` is deprecated. Please use `b` instead.",
)
_SETTINGS = (
    "INFO {t} [api_utils.py:273] non-default args: {{'model': '/models/r1', 'max_model_len': 8192, "
    "'gpu_memory_utilization': 0.9, 'max_num_batched_tokens': 4096, 'tensor_parallel_size': 4}}"
)
_FRAMES = (
    "Traceback (most recent call last):",
    '  File "/x/vllm/v1/executor/multiproc_executor.py", line {a}, in worker_busy_loop',
    "    output = func(*args, **kwargs)",
    '  File "/x/vllm_ascend/worker/model_runner_v1.py", line {a}{b}, in execute_model',
)


@dataclass
class Log:
    """Lines as they are written, and who failed first."""

    lines: list[str]
    failed: str = ""

    @property
    def data(self) -> bytes:
        return "\n".join(self.lines).encode() + b"\n"


class Writer:
    """Writes as several processes at once, with a clock that goes on."""

    def __init__(self, seed: int, ranks: int = 4) -> None:
        self.random = random.Random(seed)
        self.ranks = ranks
        self.seconds = 0
        self.pids = {name: 1000 + 37 * i for i, name in enumerate(self.processes)}

    @property
    def processes(self) -> list[str]:
        return ["APIServer", "EngineCore", *(f"Worker_TP{rank}" for rank in range(self.ranks))]

    def line(self, process: str, template: str) -> str:
        self.seconds += self.random.randrange(2)
        minutes, seconds = divmod(self.seconds, 60)
        text = template.format(
            t=f"11-30 21:{minutes % 60:02}:{seconds:02}",
            a=self.random.randrange(100),
            b=self.random.randrange(100),
            r=self.random.randrange(self.ranks),
        )
        return f"({process} pid={self.pids[process]}) {text}"

    def quiet(self, count: int) -> Iterator[str]:
        """Lines of a run in which nothing is wrong."""
        for _ in range(count):
            kind = self.random.random()
            process = self.random.choice(self.processes)
            if kind < 0.1:
                yield self.line(process, self.random.choice(_DECOYS))
            elif kind < 0.3:
                plain = self.line(process, self.random.choice(_PLAIN))
                yield plain.partition(") ")[2]
            else:
                yield self.line(process, self.random.choice(_ORDINARY))

    def error(self, process: str, text: str) -> str:
        return self.line(process, "ERROR {t} [multiproc_executor.py:987] ") + text


def quiet_log(seed: int, count: int = 120) -> Log:
    """A run in which nothing is wrong."""
    writer = Writer(seed)
    return Log([writer.line("APIServer", _SETTINGS), *writer.quiet(count)])


def noted(example: str, seed: int) -> Log:
    """A run in which the example stands and nothing fails."""
    writer = Writer(seed)
    return Log([*writer.quiet(60), *_as_is(writer, "Worker_TP1", example), *writer.quiet(60)])


def failed(example: str, seed: int, *, others_wait: bool = True) -> Log:
    """A run that ends with the example; then every other process says so in its own way."""
    writer = Writer(seed)
    rank = writer.random.randrange(writer.ranks)
    process = f"Worker_TP{rank}"
    lines = [writer.line("APIServer", _SETTINGS), *writer.quiet(80)]
    lines.append(writer.error(process, "WorkerProc hit an exception."))
    lines += (writer.error(process, frame.format(a=rank, b=seed)) for frame in _FRAMES)
    lines += _as_is(writer, process, example)
    lines += _device_line(writer, process, rank)
    lines += writer.quiet(10)
    if others_wait:
        for other in range(writer.ranks):
            if other != rank:
                lines += _waited(writer, f"Worker_TP{other}", other, rank)
    lines += _told_again(writer)
    return Log(lines, process)


def posted(said: Sequence[str], process: str, seed: int) -> Log:
    """A run that ends with what somebody posted, by a process of any name or (empty) of none."""
    writer = Writer(seed)
    lines = [writer.line("APIServer", _SETTINGS), *writer.quiet(80)]
    writer.pids.setdefault(process, 812)
    for text in (*(frame.format(a=1, b=seed) for frame in _FRAMES), *said):
        bare = not process or text.startswith(_LEVELLED)
        lines.append(text if bare else writer.error(process, text))
    return Log([*lines, *writer.quiet(10), *_told_again(writer)], process)


# What has a prefix of its own: a logger's, torch's, Mooncake's.
_LEVELLED = ("ERROR ", "WARNING ", "[rank", "[W", "E2026")


def _as_is(writer: Writer, process: str, example: str) -> list[str]:
    """With the logger's prefix where the line has none of its own, or bare, as chance has it."""
    bare = writer.random.random() < 0.2
    lines = []
    for line in example.splitlines():
        levelled = line.startswith(("(", "[W", "INFO ", "WARNING "))
        lines.append(line if bare or levelled else writer.error(process, line))
    return lines


def _device_line(writer: Writer, process: str, rank: int) -> list[str]:
    pid = writer.pids[process]
    text = f"[ERROR] 2026-11-30-21:40:00 (PID:{pid}, Device:{rank}, RankID:-1) ERR00100 PTA call"
    return [writer.error(process, f"{text} acl api failed.")]


def _waited(writer: Writer, process: str, rank: int, failed_rank: int) -> Sequence[str]:
    texts = (
        "Traceback (most recent call last):",
        "RuntimeError: synchronize:../torch_npu/a.cpp:203 NPU function error: wait, error code is "
        "507048",
        f"EI0002: [PID: {writer.pids[process]}] 2026-11-30-21:41:00.000.001 The wait execution of "
        f"the Notify register times out. Reason: no record from remote rank [{failed_rank}].",
    )
    return [writer.error(process, text) for text in texts]


def _told_again(writer: Writer) -> Sequence[str]:
    core = (
        "EngineCore encountered a fatal error.",
        "Traceback (most recent call last):",
        "RuntimeError: Worker failed with error 'see above', please check the stack trace above",
    )
    server = (
        "Traceback (most recent call last):",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack "
        "trace (above) for the root cause.",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    )
    return [
        *(writer.error("EngineCore", text) for text in core),
        *(writer.error("APIServer", text) for text in server),
    ]
