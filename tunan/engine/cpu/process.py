"""What the kernels have once a process: their threads, and the rank's packed weights."""

import ctypes
import functools
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tunan.engine import compat
from tunan.engine.cpu.sidecar import Packing, Sidecar
from tunan.kernels import PoolConfig, configure_pool
from tunan.kernels.linear import layout_key


@functools.cache
def start_threads() -> None:
    """As many threads as PyTorch has, on the CPUs that vLLM chose for this rank."""
    threads = torch.get_num_threads()
    configure_pool(PoolConfig(threads, bound_cpus(threads)))


def hush_openmp() -> None:
    """Has PyTorch's threads sleep as soon as they have nothing to do.

    vLLM has them stay awake for 5 ms. What they still do in a fused step, sampling, takes a
    fraction of that, and the rest they would take from our threads on the same CPUs. Only
    Intel's OpenMP, which `tunan serve` preloads, can be told at run time.
    """
    set_blocktime = getattr(ctypes.CDLL(None), "kmp_set_blocktime", None)
    if set_blocktime is not None:
        set_blocktime(0)


def bound_cpus(threads: int, environment: Mapping[str, str] = os.environ) -> tuple[int, ...] | None:
    """The CPU of each thread where vLLM (utils/ompmultiprocessing.py) binds them one by one.

    Threads made later inherit the one CPU of the thread that makes them, so ours have to be
    told. None: nothing is bound, or not `threads` of them.
    """
    chosen = re.search(r"explicit,proclist=\[([\d,]+)\]", environment.get("KMP_AFFINITY", ""))
    listed = chosen[1] if chosen else environment.get("GOMP_CPU_AFFINITY", "")
    cpus = tuple(int(number) for number in re.findall(r"\d+", listed))
    return cpus if len(cpus) == threads and "-" not in listed else None


def sidecar_of(vllm_config: Any) -> Sidecar:
    """The packed weights of the configured checkpoint for this rank."""
    packing = Packing(layout_key(), *compat.tensor_parallel(), _reading(vllm_config.model_config))
    if vllm_config.speculative_config is not None:
        # A draft model's layers have the main model's names and are built under its configuration.
        return Sidecar("", packing, ())
    return _sidecar(str(vllm_config.model_config.model), packing)


def _reading(model_config: Any) -> str:
    """The engine's version, and a hash of what it was told of the quantisation: by the
    checkpoint, or by `--hf-overrides`, which no file of the checkpoint knows of."""
    from vllm import __version__

    told = getattr(model_config.hf_config, "quantization_config", None)
    text = json.dumps(told, sort_keys=True, default=str)
    return f"vllm {__version__} {hashlib.sha256(text.encode()).hexdigest()}"


@functools.cache
def _sidecar(checkpoint: str, packing: Packing) -> Sidecar:
    return Sidecar.of(Path(checkpoint), packing)
