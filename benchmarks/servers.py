"""The servers that benchmarks compare: vLLM as it comes, vLLM eager, and `tunan serve`.

All get the same checkpoint, the same longest length and the same KV cache size (vLLM's own
rule wants 90 % of the machine free); everything else is each one's default.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KV_CACHE_GIB = 1
MAX_MODEL_LEN = 2048
PATIENCE_S = 400
POLL_S = 0.02

SHAPES: dict[str, dict[str, Any]] = {
    "smollm2-135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    },
    "llama-1.1b": {
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
    },
}
_STOCK = (sys.executable, "-W", "ignore", "-m", "vllm.entrypoints.openai.api_server")
VARIANTS = ("stock", "stock-eager", "tunan", "tunan-compiled")
# Of the same weights, rounded to nearest; the last word is the scheme.
QUANTISED = ("stock-w8a8", "tunan-w8a8", "tunan-w4a8")


@dataclass(frozen=True)
class Running:
    """A started server; `ready_s` and `first_token_s` count from `started`, before it was started,
    on the machine's monotonic clock. `timeline`: where `tunan` writes when its steps were done."""

    url: str
    model: str
    ready_s: float
    first_token_s: float
    started: float
    timeline: Path


def command(variant: str, model: Path, port: int) -> list[str]:
    """The command line of a variant."""
    if variant.startswith("tunan"):
        extra = ["--no-enforce-eager"] if variant == "tunan-compiled" else []
        return [
            *(sys.executable, "-m", "tunan", "serve", str(model), "--served-model-name=model"),
            *(f"--port={port}", f"--kv-cache-gib={KV_CACHE_GIB}"),
            *(f"--max-model-len={MAX_MODEL_LEN}", *extra),
        ]
    return [
        *_STOCK,
        *(f"--model={model}", "--served-model-name=model", f"--port={port}", "--host=127.0.0.1"),
        *(f"--kv-cache-memory-bytes={KV_CACHE_GIB << 30}", f"--max-model-len={MAX_MODEL_LEN}"),
        *(["--enforce-eager"] if variant == "stock-eager" else []),
    ]


def environment(variant: str, cache: Path) -> dict[str, str]:
    """Ours plus one cache directory for everything; HF_HUB_OFFLINE for all, for fairness.

    vLLM as it comes does not load our plugin.
    """
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(cache / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "XDG_CACHE_HOME": str(cache),
        "XDG_STATE_HOME": str(cache / "state"),
        "TUNAN_START_TIMELINE": str(_timeline(cache)),
        "VLLM_PLUGINS": "tunan" if variant.startswith("tunan") else "none",
    }


@contextlib.contextmanager
def running(variant: str, model: Path, cache: Path) -> Iterator[Running]:
    """Starts the variant, waits for its first token, and leaves nothing behind."""
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    ready_path = "/ready" if variant.startswith("tunan") else "/health"
    cache.mkdir(parents=True, exist_ok=True)
    # So that a benchmark that is stopped stops its server too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    _timeline(cache).unlink(missing_ok=True)
    started = time.monotonic()
    with (cache / f"{variant}.log").open("w") as log:
        process = subprocess.Popen(
            command(variant, model, port),
            env=environment(variant, cache),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        while not _answers(url + ready_path):
            if process.poll() is not None or time.monotonic() - started > PATIENCE_S:
                raise SystemExit(f"{variant} did not start; see {cache / f'{variant}.log'}")
            time.sleep(POLL_S)
        ready = time.monotonic() - started
        complete(url, [5, 6, 7], 1)
        first_token = time.monotonic() - started
        yield Running(url, "model", ready, first_token, started, _timeline(cache))
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def complete(url: str, prompt: list[int], tokens: int) -> dict[str, Any]:
    """One greedy completion of exactly `tokens` tokens."""
    body = {
        "model": "model",
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def make_model(shape: str, folder: Path, variant: str = "stock") -> Path:
    """A random Llama of the named shape (speed does not depend on the values), for the variant."""
    from tests.engine.cpu.quantised import quantise
    from tests.models import write_llama

    plain = folder / shape
    if not (plain / "config.json").exists():
        write_llama(plain, max_position_embeddings=MAX_MODEL_LEN, **SHAPES[shape])
    if variant not in QUANTISED:
        return plain
    scheme = variant.rsplit("-", 1)[1]
    quantised = folder / f"{shape}-{scheme}"
    return quantised if quantised.exists() else quantise(plain, quantised, scheme, head=False)


def earlier_runs(results: Path) -> list[dict[str, object]]:
    """The runs in a results file, none if there is no file."""
    if not results.exists():
        return []
    runs: list[dict[str, object]] = json.loads(results.read_text(encoding="utf-8"))["runs"]
    return runs


def _timeline(cache: Path) -> Path:
    return cache / "start.timeline"


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
