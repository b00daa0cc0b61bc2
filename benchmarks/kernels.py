"""Linear layers: Tunan's int8 and int4 kernels against vLLM's own CPU kernels and plain reading.

    python -m benchmarks.kernels           6 minutes on two cores, 4 GB

Each subject does one layer of x [M, K] bfloat16 to y [M, N] bfloat16, int8 ones with the
quantisation of x, over copies of the weights that together are larger than a CPU's own share of its
caches; int4 in groups of 128 and, as `w4g32`, of 32. vLLM's are torch.ops._C.onednn_scaled_mm
(W8A8, dynamic_scaled_int8_quant before it) and onednn_mm (bfloat16). In every repeat the subjects
run one after the other, `read` among them, which reads as many bytes as the int8 weights have with
the same threads; medians and the spread of the repeats are given. Writes
benchmarks/results/kernels.json.
"""

import argparse
import ctypes
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.machine import describe_machine
from tunan.kernels import PoolConfig, configure_pool, library, selected_isa
from tunan.kernels.linear import PackedLinear, linear, pack_w4, pack_w8

RESULTS = Path(__file__).with_name("results") / "kernels.json"
SHAPES = ((2048, 5632), (5632, 2048), (576, 3072))
ROWS = (1, 8, 32, 512)
THREADS = (1, 2)
BYTES_OF_ALL_COPIES = 256 << 20
GROUPS = {"w4": 128, "w4g32": 32}
# Long enough to be measured, in seconds a subject and repeat.
ENOUGH = 0.05

Layer = Callable[[torch.Tensor], object]


@dataclass(frozen=True)
class Subject:
    """Copies of one layer, used in turn."""

    name: str
    layers: list[Layer]


def main() -> None:
    """Measures everything, writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7, help="of every measurement")
    parser.add_argument("--shapes", type=int, default=len(SHAPES), help="how many of them")
    arguments = parser.parse_args()
    machine = describe_machine()
    load_vllm()
    torch.manual_seed(0)
    measured = [
        row
        for inputs, outputs in SHAPES[: arguments.shapes]
        for row in measure_shape(inputs, outputs, arguments.repeats)
    ]
    result = {
        "machine": machine | {"instruction_set": selected_isa()},
        "repeats": arguments.repeats,
        "layers": measured,
        "load_average_after": os.getloadavg()[0],
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


def load_vllm() -> None:
    """Registers vLLM's CPU operators."""
    from vllm.platforms import current_platform

    current_platform.import_kernels()


def measure_shape(inputs: int, outputs: int, repeats: int) -> list[dict[str, object]]:
    """Microseconds of one layer by every subject, by rows and threads."""
    weight = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8)
    scale = torch.rand(outputs) * 1e-3 + 1e-4
    subjects = [
        our_w8(weight, scale),
        *(our_w4(weight, name) for name in GROUPS),
        vllm_w8a8(weight, scale),
        vllm_bf16(weight, scale),
        plain_reading(weight.numel()),
    ]
    found = []
    for threads in THREADS:
        configure_pool(PoolConfig(threads=threads))
        torch.set_num_threads(threads)
        for rows in ROWS:
            x = torch.randn(rows, inputs, dtype=torch.bfloat16)
            times: dict[str, list[float]] = {subject.name: [] for subject in subjects}
            for _ in range(repeats):
                for subject in subjects:
                    times[subject.name].append(microseconds(subject, x))
            found.append(summary(inputs, outputs, rows, threads, times))
    configure_pool(PoolConfig())
    return found


def summary(
    inputs: int, outputs: int, rows: int, threads: int, times: dict[str, list[float]]
) -> dict[str, object]:
    """Medians and spreads, and what they are of each other."""
    middle = {name: statistics.median(values) for name, values in times.items()}
    return {
        "inputs": inputs,
        "outputs": outputs,
        "rows": rows,
        "threads": threads,
        "microseconds": {name: round(value, 1) for name, value in middle.items()},
        "from_to": {name: [round(min(v), 1), round(max(v), 1)] for name, v in times.items()},
        "read_gb_s": round(inputs * outputs / middle["read"] / 1e3, 1),
        "w8_of_roofline": round(middle["read"] / middle["w8"], 3),
        **{
            f"{name}_of_roofline": round(middle["read"] * w4_bytes_of_int8(group) / middle[name], 3)
            for name, group in GROUPS.items()
        },
        "w8_over_vllm_w8a8": round(middle["vllm_w8a8"] / middle["w8"], 3),
        "w4_over_vllm_bf16": round(middle["vllm_bf16"] / middle["w4"], 3),
    }


def w4_bytes_of_int8(group: int) -> float:
    """Bytes of int4 weights with float16 scales for each of int8 weights."""
    return 0.5 + 2 / group


def microseconds(subject: Subject, x: torch.Tensor) -> float:
    """Of one layer: the mean over all copies, or over fewer of them if those take long."""
    begin = time.perf_counter()
    done = 0
    while done < len(subject.layers) and (done < 2 or time.perf_counter() - begin < ENOUGH):
        subject.layers[done](x)
        done += 1
    return (time.perf_counter() - begin) / done * 1e6


def copies(of_bytes: int) -> int:
    return max(2, BYTES_OF_ALL_COPIES // of_bytes)


def ours(name: str, packed: PackedLinear) -> Subject:
    """Copies of packed weights, each in memory of its own."""

    def layer() -> Layer:
        data = torch.empty_like(packed.data)
        library.function("tunan_advise_huge_pages", None, ctypes.c_void_p, ctypes.c_int64)(
            data.data_ptr(), data.numel()
        )
        data.copy_(packed.data)
        own = PackedLinear(data, packed.outputs, packed.inputs, packed.bits, packed.group)
        return lambda x: linear(x, own)

    return Subject(name, [layer() for _ in range(copies(packed.data.numel()))])


def our_w8(weight: torch.Tensor, scale: torch.Tensor) -> Subject:
    return ours("w8", pack_w8(weight, scale))


def our_w4(weight: torch.Tensor, name: str) -> Subject:
    group = GROUPS[name]
    scale = torch.full((weight.shape[0], -(-weight.shape[1] // group)), 1e-3, dtype=torch.float16)
    return ours(name, pack_w4(weight >> 4, scale, group))


def vllm_w8a8(weight: torch.Tensor, scale: torch.Tensor) -> Subject:
    import vllm._custom_ops as ops

    def layer() -> Layer:
        handler = ops.create_onednn_scaled_mm(
            weight.t(), scale.reshape(1, -1), torch.bfloat16, dynamic_quant=True, use_azp=False
        )

        def run(x: torch.Tensor) -> torch.Tensor:
            values, scales, _ = ops.onednn_scaled_int8_quant(x)
            out = torch.empty(x.shape[0], weight.shape[0], dtype=torch.bfloat16)
            ops.onednn_scaled_mm(handler, values, out, scales, None, None, None)
            return out

        return run

    return Subject("vllm_w8a8", [layer() for _ in range(copies(weight.numel()))])


def vllm_bf16(weight: torch.Tensor, scale: torch.Tensor) -> Subject:
    import vllm._custom_ops as ops

    wide = (weight.float() * scale[:, None]).bfloat16()

    def layer() -> Layer:
        handler = ops.create_onednn_mm(wide.t())
        return lambda x: ops.onednn_mm(handler, x, None)

    return Subject("vllm_bf16", [layer() for _ in range(copies(2 * wide.numel()))])


def plain_reading(size: int) -> Subject:
    read = library.function("tunan_read_memory", ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int64)
    advise = library.function("tunan_advise_huge_pages", None, ctypes.c_void_p, ctypes.c_int64)

    def layer() -> Layer:
        data = torch.empty(size // 8 * 8, dtype=torch.uint8)
        advise(data.data_ptr(), data.numel())
        data.fill_(1)
        return lambda _: read(data.data_ptr(), data.numel())

    return Subject("read", [layer() for _ in range(copies(size))])


if __name__ == "__main__":
    main()
