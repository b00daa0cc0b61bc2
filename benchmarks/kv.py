"""The int8 KV cache against bfloat16 and against vLLM's own attention: size, time and error.

    python -m benchmarks.kv                3 minutes on two cores

One decode step of one sequence, for the heads of four models at 2048 and 8192 tokens, by 1 and 2
threads, with several layers' caches in turn so that none is in the caches of the CPU. Ours with an
int8 and with a bfloat16 cache and vLLM's operator (torch.ops._C.cpu_attention_with_kv_cache, its
bfloat16 cache) run one after the other in every repeat; the median of the repeats and their spread
are given. The error is relative, in L2, to float64 on the same normal data. `read_gb_s` is how fast
the same threads read memory in the same minute. Writes benchmarks/results/kv.json.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.machine import describe_machine
from tests.kernels.paged import Sequences, Shape, relative_error, sequences
from tunan.kernels import PoolConfig, configure_pool, selected_isa
from tunan.kernels.kv_cache import PagedKVCache, content_bytes

RESULTS = Path(__file__).with_name("results") / "kv.json"
SHAPES = {
    "32 heads of 64, 4 of keys": Shape(32, 4, 64, 128),
    "9 heads of 64, 3 of keys": Shape(9, 3, 64, 128),
    "32 heads of 128, 8 of keys": Shape(32, 8, 128, 128),
    "16 heads of 128": Shape(16, 16, 128, 128),
}
LENGTHS = (2048, 8192)
THREADS = (1, 2)
# Together larger than a last-level cache that is not shared with a whole server.
BYTES_OF_ALL_LAYERS = 64 << 20
LATENT = Shape(16, 1, 576, 16, 64)

Step = Callable[[], object]


@dataclass(frozen=True)
class Layer:
    """One sequence's cache as one of the three keeps it."""

    step: Step


def main() -> None:
    """Measures everything, writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7, help="of every measurement")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="tokens")
    arguments = parser.parse_args()
    machine = describe_machine()
    load_vllm()
    result = {
        "machine": {**machine, "isa": selected_isa()},
        "capacity": [capacity(name, shape) for name, shape in SHAPES.items()]
        + [capacity("latent of DeepSeek-V2 and V3", LATENT)],
        "decode": [
            measured
            for name, shape in SHAPES.items()
            for length in arguments.lengths
            for measured in decode(name, shape, length, arguments.repeats)
        ],
        "load_average_after": os.getloadavg()[0],
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


def load_vllm() -> None:
    """Registers vLLM's CPU operators and asks for the AMX registers that they may use."""
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    torch.cpu._init_amx()


def capacity(name: str, shape: Shape) -> dict[str, object]:
    """Bytes of a token in one layer."""
    heads = shape.key_heads
    wide, narrow = (
        heads * content_bytes(shape.head_size, dtype, shape.rope_size)
        for dtype in (torch.bfloat16, torch.int8)
    )
    return {
        "shape": name,
        "bytes_bf16": wide,
        "bytes_int8": narrow,
        "times_as_many_tokens": round(wide / narrow, 3),
    }


def decode(name: str, shape: Shape, length: int, repeats: int) -> list[dict[str, object]]:
    """Microseconds of one step in one layer, by threads."""
    given = {
        cache: sequences(shape, [(1, length)], dtype)
        for cache, dtype in (("bf16", torch.bfloat16), ("int8", torch.int8))
    }
    expected = given["bf16"].expected()
    theirs = vllm_layers(given["bf16"])
    layers = {cache: our_layers(case) for cache, case in given.items()} | {"vllm": theirs}
    errors = {kind: relative_error(steps[0].step(), expected) for kind, steps in layers.items()}  # type: ignore[arg-type]
    found = []
    for threads in THREADS:
        set_threads(threads)
        times: dict[str, list[float]] = {kind: [] for kind in layers}
        read = []
        for _ in range(repeats):
            read.append(read_speed())
            for kind, steps in layers.items():
                times[kind].append(seconds_a_layer(steps))
        found.append(
            {
                "shape": name,
                "length": length,
                "threads": threads,
                "read_gb_s": round(statistics.median(read), 1),
                **{kind: summary(times[kind], errors[kind]) for kind in layers},
            }
        )
    set_threads(1)
    return found


def summary(times: list[float], error: float) -> dict[str, object]:
    """Microseconds, and the error."""
    micro = sorted(round(1e6 * seconds, 1) for seconds in times)
    return {
        "us": statistics.median(micro),
        "least_us": micro[0],
        "most_us": micro[-1],
        "relative_error": float(f"{error:.2e}"),
    }


def set_threads(threads: int) -> None:
    """Of ours, and of vLLM's OpenMP loops."""
    configure_pool(PoolConfig(threads=threads))
    torch.set_num_threads(threads)


def seconds_a_layer(layers: list[Layer]) -> float:
    """One step of all layers, in turn."""
    start = time.perf_counter()
    for layer in layers:
        layer.step()
    return (time.perf_counter() - start) / len(layers)


def copies(tensor: torch.Tensor) -> list[torch.Tensor]:
    """As many as make BYTES_OF_ALL_LAYERS, the tensor itself first."""
    count = max(2, -(-BYTES_OF_ALL_LAYERS // (tensor.numel() * tensor.itemsize)))
    return [tensor, *(tensor.clone() for _ in range(count - 1))]


def our_layers(given: Sequences) -> list[Layer]:
    """Ours."""
    from tunan.kernels.attention import paged_attention

    out = torch.empty_like(given.query)
    start, lengths = given.query_start, given.seq_lens

    def layer(tensor: torch.Tensor) -> Layer:
        cache = PagedKVCache(tensor, given.shape.head_size)
        return Layer(
            lambda: paged_attention(
                given.query, cache, start, lengths, given.table, scale=given.scale, out=out
            )
        )

    return [layer(tensor) for tensor in copies(given.cache.tensor)]


def vllm_layers(given: Sequences) -> list[Layer]:
    """vLLM's operator on the same sequence, with the instruction set that it chooses here."""
    from vllm import _custom_ops as ops
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    shape = given.shape
    isa = _get_attn_isa(torch.bfloat16, shape.block_size, shape.head_size, "auto")
    out = torch.empty_like(given.query)
    start, lengths = given.query_start, given.seq_lens
    plan = {threads: vllm_plan(shape, start, lengths, isa, threads) for threads in sorted(THREADS)}

    def layer(tensor: torch.Tensor) -> Layer:
        blocks, heads, block_size, _ = tensor.shape
        keys, values = tensor.view(blocks, heads, 2 * block_size, -1).chunk(2, dim=2)
        slots = given.slots(0)
        ops.cpu_attn_reshape_and_cache(given.keys[0], given.values[0], keys, values, slots, isa)

        def step() -> torch.Tensor:
            ops.cpu_attention_with_kv_cache(
                given.query,
                keys,
                values,
                out,
                start,
                lengths,
                given.scale,
                True,
                None,
                -1,
                given.table,
                0.0,
                plan[torch.get_num_threads()],
                None,
            )
            return out

        return Layer(step)

    return [layer(tensor) for tensor in copies(torch.zeros_like(given.cache.tensor))]


def vllm_plan(
    shape: Shape, start: torch.Tensor, lengths: torch.Tensor, isa: str, threads: int
) -> torch.Tensor:
    """Which thread does what, as vLLM makes it once a step, with contexts split."""
    from vllm import _custom_ops as ops

    set_threads(threads)
    plan: torch.Tensor = ops.cpu_attn_get_scheduler_metadata(
        num_reqs=1,
        num_heads=shape.heads,
        num_kv_heads=shape.key_heads,
        head_dim=shape.head_size,
        seq_lens=lengths,
        dtype=torch.bfloat16,
        query_start_loc=start,
        causal=True,
        sliding_window_size=-1,
        isa=isa,
        enable_kv_split=True,
    )
    return plan


def read_speed() -> float:
    """GB/s of a plain sum over memory by torch's threads."""
    data = _READ
    start = time.perf_counter()
    data.sum()
    return data.numel() * data.itemsize / (time.perf_counter() - start) / 1e9


_READ = torch.ones(32 << 20, dtype=torch.float32)


if __name__ == "__main__":
    main()
