"""Test models as `tunan convert` writes them."""

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
