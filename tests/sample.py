"""The real sample model, SmolLM2-135M-Instruct, fetched as `make run` does."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
GGUF = ROOT / ".models" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def sample_gguf() -> Path:
    """The GGUF file; fetched (98 MB) if it is not there yet."""
    if not GGUF.is_file():
        script = ROOT / "scripts" / "get_sample_model.py"
        subprocess.run([sys.executable, str(script), str(GGUF)], check=True)
    return GGUF
