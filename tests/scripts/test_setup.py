"""The setup scripts where no package index answers: one line and status 3."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
OFFLINE = {
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_FIND_LINKS": "",
    "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
    "PIP_RETRIES": "0",
    "TORCH_INDEX": "http://127.0.0.1:9/simple",
}


def fake_environment(folder: Path, pip: str) -> Path:
    """A virtual environment whose pip is the script `pip`."""
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "pip"
    program.write_text(f"#!/bin/sh\n{pip}\n")
    program.chmod(0o755)
    return folder


def run(script: str, venv: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    names = {"VENV": str(venv), "VENV_ASCEND": str(venv), "PYTHON": "python3"}
    return subprocess.run(
        [str(SCRIPTS / script)],
        capture_output=True,
        text=True,
        env=os.environ | OFFLINE | names | environment,
        check=False,
    )


needs = pytest.mark.skipif(
    shutil.which("python3.11") is None or shutil.which("g++") is None,
    reason="the script for the Ascend environment asks for python3.11 and g++ first",
)


@needs
def test_torch_that_is_nowhere_is_one_line(tmp_path: Path) -> None:
    done = run("setup_ascend.sh", fake_environment(tmp_path / "venv", "echo noise >&2; exit 1"))
    assert done.returncode == 3
    assert done.stderr.startswith("setup-ascend: torch's CPU build was found neither by pip nor at")
    assert len(done.stderr.splitlines()) == 1


@needs
@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("WARNING: Retrying after ReadTimeoutError", "the package index did not answer"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", "THESE PACKAGES DO NOT MATCH THE HASHES"),
    ],
)
def test_packages_that_cannot_be_installed_are_one_line(
    tmp_path: Path, said: str, reason: str
) -> None:
    pip = f'case "$*" in *torch.txt*) exit 0;; esac\necho "noise"; echo "{said}" >&2; exit 1'
    venv = fake_environment(tmp_path / "venv", pip)
    done = run("setup_ascend.sh", venv)
    assert done.returncode == 3
    assert f"requirements/ascend-emulated.lock could not be installed: {reason}" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert said in (venv / "install.log").read_text()
