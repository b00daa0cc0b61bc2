"""Loads a model, says what then lies on the devices, and generates.

`python -m tests.ascend.programs.load TASK`, as tests/ascend/loading.py makes it. The result:
`parameters` (by rank, see parameters.py), `tokens` (by prompt), and `memory`, what loading took
in this process, where the engine runs in it.
"""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch_npu
from vllm import LLM, SamplingParams
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

from tests.ascend.programs.parameters import on_device

DEFAULTS: dict[str, Any] = {
    "enforce_eager": True,
    "max_model_len": 128,
    "max_num_batched_tokens": 128,
    "max_num_seqs": 4,
    "gpu_memory_utilization": 0.3,
    "block_size": 128,
    "seed": 0,
}


def main() -> None:
    task = json.loads(sys.argv[1])
    memory: dict[str, int] = {}
    with _measured(memory):
        engine = LLM(model=task["model"], **DEFAULTS | task["engine"])
    parameters = engine.apply_model(on_device)
    sampling = SamplingParams(temperature=0, max_tokens=task["tokens"], ignore_eos=True)
    tokens = []
    for prompt in task["prompts"]:
        (output,) = engine.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
        tokens.append(list(output.outputs[0].token_ids))
    result = {"parameters": parameters, "tokens": tokens, "memory": memory}
    sys.stdout.write(f"RESULT {json.dumps(result)}\n")


@contextmanager
def _measured(memory: dict[str, int]) -> Iterator[None]:
    """Fills in what `BaseModelLoader.load_model`, which every loader goes through, takes."""
    load_model = BaseModelLoader.load_model

    def measured(self: Any, *args: Any, **keywords: Any) -> Any:
        torch_npu.npu.reset_peak_memory_stats()
        before, device_before = _anonymous(), torch_npu.npu.memory_allocated()
        with _PeakOfAnonymous() as peak:
            model = load_model(self, *args, **keywords)
        torch_npu.npu.synchronize()
        memory.update(
            host_peak=peak.bytes - before,
            host=_anonymous() - before,
            device_peak=torch_npu.npu.max_memory_allocated() - device_before,
            device=torch_npu.npu.memory_allocated() - device_before,
        )
        return model

    BaseModelLoader.load_model = measured
    try:
        yield
    finally:
        BaseModelLoader.load_model = load_model


def _anonymous() -> int:
    """Bytes of this process that no file stands behind; an emulated device's memory is of them."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise AssertionError("this kernel does not say RssAnon")


class _PeakOfAnonymous:
    """Looks every few milliseconds while the block runs."""

    def __init__(self) -> None:
        self.bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "_PeakOfAnonymous":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.005):
            self.bytes = max(self.bytes, _anonymous())


if __name__ == "__main__":
    main()
