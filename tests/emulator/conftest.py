"""The emulator's Python as it is in the tree, whatever wheel of it is installed."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).parents[2] / "emulator"


def _loaded() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "tunan_emulator"]


@pytest.fixture
def emulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The package `tunan_emulator`, forgotten afterwards."""
    for name in _loaded():
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(SOURCE))
    yield importlib.import_module("tunan_emulator")
    for name in _loaded():
        del sys.modules[name]
