"""Test models as `tunan convert` writes them."""

import subprocess
import sys
from pathlib import Path

from tests.models import write_deepseek_v2_lite, write_deepseek_v3, write_llama, write_qwen2
from tunan.cli.main import main

FAMILIES = ("llama", "qwen2", "deepseek-v2-lite", "deepseek-v3")


def write_source(family: str, directory: Path) -> Path:
    """The unconverted model of a family; `deepseek-v3` in its variants too."""
    match family:
        case "llama":
            return write_llama(directory)
        case "qwen2":
            return write_qwen2(directory)
        case "deepseek-v2-lite":
            return write_deepseek_v2_lite(directory)
        case "deepseek-v3":
            return write_deepseek_v3(directory)
        case "deepseek-v3-fp8":
            return write_deepseek_v3(directory, fp8=True)
        case "deepseek-v3-mtp":
            return write_deepseek_v3(directory, mtp=True)
    raise ValueError(family)


def convert(family: str, directory: Path, *options: str) -> Path:
    """Writes and converts a model; returns the converted directory."""
    source = write_source(family, directory / f"{family}-source")
    converted = directory / family
    status = main(["convert", str(source), str(converted), *options])
    if status != 0:
        raise AssertionError(f"tunan convert {source} exits with {status}")
    return converted


def convert_sample(directory: Path) -> Path | None:
    """The real sample model, from the checkout if `make run` was here, else fetched.

    None where pip cannot fetch it.
    """
    root = Path(__file__).parents[2]
    here = root / ".models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    model = here if here.is_file() else directory / here.name
    command = [sys.executable, "scripts/get_sample_model.py", str(model)]
    if subprocess.run(command, cwd=root, check=False, capture_output=True).returncode != 0:
        return None
    converted = directory / "sample"
    if main(["convert", str(model), str(converted)]) != 0:
        raise AssertionError(f"tunan convert {model} failed")
    return converted
