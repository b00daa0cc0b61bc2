"""One loading, measured from outside: says `ready:`, waits for a line, says `done:` and waits.

Started by `benchmarks.load` with a JSON question (see `tests.engine.one_rank`).
"""

import json
import os
import sys
import time
from pathlib import Path


def main() -> None:
    """Builds and loads the model as an engine's worker does, up to its KV cache."""
    question = json.loads(sys.argv[1])
    from vllm.v1.worker import cpu_model_runner

    from tests.engine.one_rank import one_rank

    # What the worker does first: on a CPU these calls of torch have nothing to call.
    cpu_model_runner._set_torch_accelerator_to_noop()
    with one_rank(question) as (vllm_config, loader):
        print("ready:", flush=True)
        sys.stdin.readline()
        read, start = _read_bytes(), time.perf_counter()
        model = loader.load_model(vllm_config, vllm_config.model_config)
        seconds = time.perf_counter() - start
        print(f"done:{seconds} {_read_bytes() - read}", flush=True)
        sys.stdin.readline()
        del model
    os._exit(0)


def _read_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("read_bytes")))


if __name__ == "__main__":
    main()
