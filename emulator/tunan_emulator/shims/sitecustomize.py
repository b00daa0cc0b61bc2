"""Runs at the start of every Python process of an emulated run (it is on PYTHONPATH only there)."""

import importlib.util
import sys
from pathlib import Path


def _load_replacements() -> None:
    # By path: in the child's environment the package itself need not be importable.
    path = Path(__file__).parents[1] / "replacements.py"
    spec = importlib.util.spec_from_file_location("tunan_emulator_replacements", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is gone; install tunan-emulator again")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.install()


_load_replacements()
