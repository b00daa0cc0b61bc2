"""Memory of a conversion does not grow with what is converted."""

import json
import subprocess
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from tunan.checkpoint.architectures import expected_tensors

# 300 MB of float32, two thirds of it in one tensor.
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 6,
    "vocab_size": 100_000,
    "tie_word_embeddings": True,
}
IDLE = "from pathlib import Path; from tests.checkpoint.sources import *; import numpy, pydantic;"
CONVERT = IDLE + "import sys; run_conversion(Path(sys.argv[1]), Path(sys.argv[2]))"


def anonymous_bytes(process: int) -> int:
    """RssAnon; 0 once the process is gone."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon")), 0)


def peak_while(command: list[str]) -> int:
    """The most anonymous memory a command holds, sampled every 2 ms."""
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", *command], cwd=root)
    peak = 0
    while process.poll() is None:
        peak = max(peak, anonymous_bytes(process.pid))
        time.sleep(0.002)
    assert process.returncode == 0
    return peak


def test_a_conversion_holds_chunks_and_never_a_tensor(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    tensors = {name: torch.ones(shape) for name, shape in expected_tensors(CONFIG).items()}
    save_file(tensors, source / "model.safetensors")
    (source / "config.json").write_text(json.dumps(CONFIG))
    (source / "tokenizer.json").write_text("{}")
    idle = peak_while([IDLE])
    largest_tensor_written = 100_000 * 512 * 2
    assert peak_while([CONVERT, str(source), str(tmp_path / "out")]) - idle < largest_tensor_written
