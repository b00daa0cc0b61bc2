"""Copies a file of tensors to the device through the staging buffers: `stage.py FILE`.

The result: bytes of the `weights`, `host_peak`, the most anonymous memory that this took at any
time, and `equal`, whether what is on the device is what the file holds.
"""

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import torch
import torch_npu

from tunan.checkpoint.safetensors_header import read_header
from tunan.engine.mapping import map_tensor
from tunan.engine.staging import copy_to_device


def main() -> None:
    path = Path(sys.argv[1])
    stored = read_header(path)
    torch_npu.npu.synchronize()
    before = peak = _anonymous()
    over = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(0.002):
            peak = max(peak, _anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    with path.open("rb") as file:
        targets: list[torch.Tensor] = []

        def pairs() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            for tensor in stored:
                source = map_tensor(file.fileno(), tensor)
                targets.append(torch.empty(tensor.shape, dtype=source.dtype, device="npu"))
                yield targets[-1], source

        copy_to_device(pairs())
        over.set()
        watcher.join()
        equal = all(
            torch.equal(target.cpu(), map_tensor(file.fileno(), tensor))
            for target, tensor in zip(targets, stored, strict=True)
        )
    weights = sum(target.nbytes for target in targets)
    result = {"weights": weights, "host_peak": peak - before, "equal": equal}
    sys.stdout.write(f"RESULT {json.dumps(result)}\n")


def _anonymous() -> int:
    """Bytes of this process that no file stands behind; an emulated device's memory is of them."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) << 10


if __name__ == "__main__":
    main()
