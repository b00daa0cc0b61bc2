"""`tunan diagnose`."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tunan.cli.main import main


def _log(folder: Path, text: str, name: str = "engine.log") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / name
    log.write_text(text)
    return log


def test_a_known_cause_is_status_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = _log(tmp_path, "RuntimeError: NPU out of memory.\n")
    assert main(["diagnose", str(log)]) == 0
    assert f"where: {log}:1" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["KeyError: 'x'\n", "all is well\n", ""])
def test_an_unknown_error_or_none_is_status_1(tmp_path: Path, text: str) -> None:
    assert main(["diagnose", str(_log(tmp_path, text))]) == 1


def test_standard_input_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ValueError: FORCE STOP\n")))
    assert main(["diagnose", "-", "--json", "--lang", "zh"]) == 0
    assert json.loads(capsys.readouterr().out)["cause"]["id"] == "npu-force-stop"


def test_without_a_log_the_last_engines_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    old = _log(tmp_path / "tunan" / "a-1", "KeyError: 1\n")
    _log(tmp_path / "tunan" / "b-2", "RuntimeError: UCE ERROR\n", "engine-1.log")
    os.utime(old, (1, 1))
    assert main(["diagnose"]) == 0
    assert "npu-memory-uce" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no-such.log"], "no-such.log: there is no such log"),
        (["."], ".: is a directory"),
        (["-", "x.log"], "takes no other LOG"),
        ([], "name the LOG to read"),
    ],
)
def test_what_cannot_be_read_is_status_2(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert main(["diagnose", *words]) == 2
    assert said in capsys.readouterr().err


def test_it_needs_neither_torch_nor_an_engine(tmp_path: Path) -> None:
    log = _log(tmp_path, "RuntimeError: NPU out of memory.\n")
    code = (
        "import sys; from tunan.cli.main import main; main(['diagnose', sys.argv[1]]); "
        "print([m for m in ('torch', 'vllm', 'numpy', 'aiohttp') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, log], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
