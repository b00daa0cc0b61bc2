"""Measures `tunan convert`: bytes a second and peak anonymous memory, on a generated checkpoint.

    python benchmarks/convert.py                   8 GB; needs 25 GB of disk and 2 minutes
    python benchmarks/convert.py --gigabytes 2

Anonymous memory (RssAnon of /proc/PID/status, sampled every 10 ms) is what a conversion needs
to itself; the pages of the mapped source are the page cache's. The source is taken out of the
page cache before each run. Writes benchmarks/results/convert.json.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import torch

from tunan.checkpoint.architectures import Shape, expected_tensors, layer_of

RESULTS = Path(__file__).with_name("results") / "convert.json"
SHARD_BYTES = 4 << 30
PATTERN_BYTES = 64 << 20
SAMPLE_SECONDS = 0.01
FP8_BLOCK = 128
ITEM_BYTES = {"F8_E4M3": 1, "BF16": 2, "F32": 4}
TUNAN = (sys.executable, "-c", "from tunan.cli.main import main; raise SystemExit(main())")

# The embedding alone is 1.74 GB, so that one tensor is larger than a block and the limit.
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 6400,
    "intermediate_size": 17920,
    "num_attention_heads": 50,
    "num_key_value_heads": 10,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "vocab_size": 136000,
    "torch_dtype": "bfloat16",
}

Stored = dict[str, tuple[str, Shape]]


@dataclass(frozen=True)
class Measurement:
    """One conversion: what was asked, how long it took, the most anonymous memory it held."""

    case: str
    source_gb: float
    written_gb: float
    seconds: float
    gb_written_per_second: float
    peak_anonymous_mb: float
    blocks: int


def main() -> None:
    """Generates the checkpoint, runs the cases, writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=8.0)
    parser.add_argument("--scratch", type=Path, default=None, help="where the files go")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.scratch) as scratch:
        size, cut = round(args.gigabytes * 1e9), ["--tensor-parallel-size", "2"]
        plain, quantised = Path(scratch) / "bf16", Path(scratch) / "fp8"
        generate(plain, size)
        cases = [
            ("bf16", []),
            ("bf16, also 2 ranks", cut),
            ("bf16 to fp16", ["--dtype", "float16"]),
        ]
        measured = [measure(plain, case, options) for case, options in cases]
        shutil.rmtree(plain)
        generate(quantised, size // 2, fp8=True)
        cases = [("fp8 to bf16", []), ("fp8 to bf16, also 2 ranks", cut)]
        measured += [measure(quantised, case, options) for case, options in cases]
    result = {"machine": machine(), "runs": [asdict(run) for run in measured]}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))


def generate(directory: Path, size: int, *, fp8: bool = False) -> None:
    """Writes a Llama checkpoint of about `size` bytes, without holding it in memory.

    In bf16, or with the layers' matrices in DeepSeek's block-wise FP8 (all ones, scaled by one).
    """
    directory.mkdir()
    layers = 1
    while _bytes(_stored(CONFIG | {"num_hidden_layers": layers + 1}, fp8)) <= size:
        layers += 1
    config = CONFIG | {"num_hidden_layers": layers}
    stored = _stored(config, fp8)
    if fp8:
        config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text("{}")
    shards = list(_shards(stored))
    weights: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        weights |= dict.fromkeys(shard, name)
        _write_shard(directory / name, shard)
    index = {"metadata": {}, "weight_map": weights}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def measure(source: Path, case: str, options: list[str]) -> Measurement:
    """Converts `source` in a process of its own and watches it."""
    for file in source.glob("*.safetensors"):
        _evict(file)
    destination = source.with_name("converted")
    command = [*TUNAN, "convert", str(source), str(destination)]
    begin = time.monotonic()
    process = subprocess.Popen([*command, "--json", *options], stdout=subprocess.PIPE, text=True)
    peak = 0
    while process.poll() is None:
        peak = max(peak, anonymous_bytes(process.pid))
        time.sleep(SAMPLE_SECONDS)
    seconds = time.monotonic() - begin
    output = process.communicate()[0]
    if process.returncode:
        raise SystemExit(f"{case}: exit status {process.returncode}")
    outcome = json.loads(output)
    shutil.rmtree(destination)
    written = outcome["written_bytes"] / 1e9
    stored = sum(file.stat().st_size for file in source.glob("*.safetensors")) / 1e9
    return Measurement(
        case,
        round(stored, 3),
        round(written, 3),
        round(seconds, 2),
        round(written / seconds, 3),
        round(peak / 1e6, 1),
        len(outcome["blocks"]),
    )


def anonymous_bytes(process: int) -> int:
    """RssAnon of a process, 0 once it is gone."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon")), 0)


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith(("model name", "CPU implementer"))
        ),
        platform.machine(),
    )
    return {
        "cpu": cpu,
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _stored(config: dict[str, Any], fp8: bool) -> Stored:
    """Number format and shape of every tensor in the files."""
    stored: Stored = {}
    for name, shape in expected_tensors(config).items():
        if fp8 and len(shape) == 2 and layer_of(name) is not None:
            stored[name] = ("F8_E4M3", shape)
            scales = tuple(-(-size // FP8_BLOCK) for size in shape)
            stored[name + "_scale_inv"] = ("F32", scales)
        else:
            stored[name] = ("BF16", shape)
    return stored


def _bytes(stored: Stored) -> int:
    return sum(ITEM_BYTES[dtype] * prod(shape) for dtype, shape in stored.values())


def _shards(stored: Stored) -> Iterator[Stored]:
    shard: Stored = {}
    for name, tensor in stored.items():
        if shard and _bytes(shard | {name: tensor}) > SHARD_BYTES:
            yield shard
            shard = {}
        shard[name] = tensor
    yield shard


def _write_shard(path: Path, shard: Stored) -> None:
    header, offset = {}, 0
    for name, (dtype, shape) in shard.items():
        end = offset + _bytes({name: (dtype, shape)})
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, (dtype, shape) in shard.items():
            left, pattern = _bytes({name: (dtype, shape)}), _pattern(dtype)
            while left:
                piece = min(left, len(pattern))
                file.write(pattern[:piece])
                left -= piece
        file.flush()
        os.fsync(file.fileno())


@cache
def _pattern(dtype: str) -> memoryview:
    if dtype == "BF16":
        values = (torch.randn(PATTERN_BYTES // 2) * 0.02).to(torch.bfloat16)
    elif dtype == "F32":
        values = torch.ones(PATTERN_BYTES // 4)
    else:
        values = torch.ones(PATTERN_BYTES).to(torch.float8_e4m3fn)
    flat: memoryview = values.view(torch.uint8).numpy().data
    return flat


def _evict(path: Path) -> None:
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    main()
