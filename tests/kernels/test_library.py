"""Loading the library: instruction sets chosen, and what is said where it cannot be loaded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tunan import kernels
from tunan.errors import OutsideError, UsageError
from tunan.kernels import library

QUESTION = """
from tunan import kernels
print(kernels.selected_isa() if kernels.available() else kernels.unavailable_reason())
"""


def ask(isa: str) -> str:
    environment = {**os.environ, "TUNAN_KERNELS_ISA": isa}
    command = [sys.executable, "-c", QUESTION]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return answer.stdout.strip()


def test_the_library_is_built_and_loads() -> None:
    assert kernels.unavailable_reason() is None


def test_the_newest_instruction_set_is_chosen() -> None:
    assert kernels.supported_isas()[0] == "scalar"
    assert kernels.selected_isa() == kernels.supported_isas()[-1]


@pytest.mark.parametrize("isa", kernels.supported_isas() if kernels.available() else [])
def test_the_environment_chooses_an_instruction_set(isa: str) -> None:
    assert ask(isa) == isa


def test_an_unknown_instruction_set_makes_the_kernels_unavailable_with_a_reason() -> None:
    reason = ask("avx9")
    assert reason.startswith("TUNAN_KERNELS_ISA: avx9 is no instruction set of this library")
    assert "\n" not in reason


def test_an_unknown_instruction_set_is_refused_and_the_one_in_use_stays() -> None:
    before = kernels.selected_isa()
    with pytest.raises(UsageError, match="avx9 is no instruction set"):
        kernels.select_isa("avx9")
    assert kernels.selected_isa() == before


def test_a_missing_library_is_a_reason_and_an_error_of_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "libtunan_kernels.so")
    library._load.cache_clear()
    library.function.cache_clear()
    try:
        assert not kernels.available()
        reason = kernels.unavailable_reason()
        assert reason is not None
        assert reason.endswith("is missing: run make kernels (it needs g++ and cmake)")
        with pytest.raises(OutsideError, match="is missing"):
            kernels.selected_isa()
    finally:
        library._load.cache_clear()


def test_a_library_that_is_none_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "libtunan_kernels.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(library, "LIBRARY", broken)
    library._load.cache_clear()
    try:
        assert "cannot be loaded" in str(kernels.unavailable_reason())
    finally:
        library._load.cache_clear()
