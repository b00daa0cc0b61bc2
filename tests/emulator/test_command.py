"""`tunan emulate` with commands that cannot be run; those that can are in tests/ascend."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulator.conftest import SOURCE


def refusal(*arguments: str) -> str:
    """The one line that `tunan emulate` with `arguments` prints, with status 2."""
    done = subprocess.run(
        [sys.executable, "-m", "tunan", "emulate", *arguments],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    return line


def test_a_directory_is_no_command(tmp_path: Path) -> None:
    assert f"{tmp_path}: is a directory; name a program" in refusal("--", str(tmp_path))


@pytest.mark.parametrize(
    ("text", "mode", "complaint"),
    [
        ("echo hello\n", 0o755, "write its interpreter before it"),
        ("#!/no/such/interpreter\n", 0o755, "the interpreter that it names is not on this machine"),
        ("#!/bin/sh\n", 0o644, "is not executable; `chmod +x` it"),
    ],
)
def test_a_file_that_cannot_be_run_comes_with_a_next_step(
    tmp_path: Path, text: str, mode: int, complaint: str
) -> None:
    script = tmp_path / "script"
    script.write_text(text)
    script.chmod(mode)
    line = refusal("--", str(script))
    assert line.startswith(f"tunan: {script}: ")
    assert complaint in line


def test_a_trace_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    assert "Is a directory" in refusal("--trace", str(tmp_path), "--", "true")
