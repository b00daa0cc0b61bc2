"""What benchmarks/cpu.py measures: two models, each in the engines and precisions to compare."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.servers import SHAPES

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / ".models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
KV_CACHE_BYTES = 1 << 30


@dataclass(frozen=True)
class Subject:
    """An engine to measure, its arguments, and which of our kernels it may use."""

    name: str
    arguments: dict[str, Any]
    kernels: str = "0"
    python: str = sys.executable

    @property
    def command(self) -> list[str]:
        if self.python == sys.executable:
            return [self.python, "-W", "ignore", "-m", "benchmarks.cpu_engine"]
        return [self.python, str(Path(__file__).with_name("cpu_llama_cpp.py"))]


@dataclass(frozen=True)
class Models:
    """The directories of one model."""

    bf16: Path
    w8a8: Path
    w4a8: Path


def _sample(scratch: Path, llama_cpp: str | None) -> list[Subject]:
    if not SAMPLE.is_file():
        script = ROOT / "scripts" / "get_sample_model.py"
        subprocess.run([sys.executable, str(script), str(SAMPLE)], check=True)
    models = Models(*(scratch / f"135m-{name}" for name in ("bf16", "w8a8", "w4a8")))
    _convert(models.bf16)
    _convert(models.w8a8, "--quantize", "w8a8", "--no-report")
    _convert(models.w4a8, "--quantize", "w4a8", "--no-report")
    subjects = _subjects(models, "tunan")
    if llama_cpp:
        arguments = {"model": str(SAMPLE), "threads": len(os.sched_getaffinity(0))}
        subjects.append(Subject("llama.cpp Q4_1", arguments, python=llama_cpp))
    return subjects


def _generated(scratch: Path, llama_cpp: str | None) -> list[Subject]:
    """Speed does not depend on the values, so nobody measures the quality of these weights."""
    del llama_cpp  # there is no GGUF file of it
    from tests.engine.cpu.quantised import quantise
    from tests.models import write_llama

    shape = SHAPES["llama-1.1b"] | {"max_position_embeddings": 16384}
    plain = write_llama(scratch / "1.1b-bf16", **shape)
    quantised = (
        quantise(plain, scratch / f"1.1b-{scheme}", scheme, head=False)
        for scheme in ("w8a8", "w4a8")
    )
    return _subjects(Models(plain, *quantised), "auto")


def _subjects(models: Models, load_format: str) -> list[Subject]:
    stock, w8a8, w4a8 = (
        _engine(path, load_format) for path in (models.bf16, models.w8a8, models.w4a8)
    )
    head = "linear,attention,fused,head"
    return [
        Subject("vLLM bf16", stock),
        Subject("vLLM W8A8", w8a8),
        Subject("Tunan W8A8", w8a8, "1"),
        Subject("Tunan W8A8, int8 head", w8a8, head),
        Subject("Tunan W4A8, int8 head", w4a8, head),
        Subject(
            "Tunan W4A8, int8 head and KV", w4a8 | {"kv_cache_dtype": "int8_per_token_head"}, head
        ),
    ]


def _convert(destination: Path, *options: str) -> None:
    command = [sys.executable, "-m", "tunan", "convert", str(SAMPLE), str(destination), *options]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def _engine(model: Path, load_format: str) -> dict[str, Any]:
    return {
        "model": str(model),
        "load_format": load_format,
        "dtype": "bfloat16",
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "kv_cache_memory_bytes": KV_CACHE_BYTES,
        "max_model_len": 4096,
        "max_num_batched_tokens": 4096,
        "max_num_seqs": 32,
        "disable_log_stats": True,
    }


MODELS = {"sample-135m": _sample, "generated-1.1b": _generated}
