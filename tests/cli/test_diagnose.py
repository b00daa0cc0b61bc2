"""`tunan diagnose`."""

import gzip
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


def test_the_log_of_the_run_that_failed_is_found_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = tmp_path / "tunan" / "a-1"
    for age, name in enumerate(("engine-1.log", "engine-0.log", "engine-1.log.1")):
        os.utime(_log(folder, "all is well\n", name), (9 - age, 9 - age))
    assert main(["diagnose"]) == 1
    os.utime(_log(folder, "RuntimeError: UCE ERROR\n", "engine-0.log.1"), (5, 5))
    assert main(["diagnose"]) == 0
    assert f"where: {folder}/engine-0.log.1:1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no-such.log"], "no-such.log: there is no such log"),
        (["/dev/zero"], "/dev/zero: is a device; give the log's file, or - for standard input"),
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


def test_json_is_json_whatever_the_terminal_s_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = _log(tmp_path, "ValueError: caf\u00e9 \U0001f600\n")
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="ascii"))
    assert main(["diagnose", str(log), "--json", "--lang", "zh"]) == 1
    assert json.loads(out.getvalue())["cause"]["text"] == "ValueError: caf\u00e9 \U0001f600"


@pytest.mark.parametrize(
    ("content", "program"),
    [
        (gzip.compress(b"RuntimeError: NPU out of memory.\n"), "zcat"),
        ("RuntimeError: NPU out of memory.\n".encode("utf-16"), "iconv"),
    ],
    ids=["gzip", "utf-16"],  # a name made of the bytes would have the time in it
)
def test_what_is_no_text_is_refused_with_what_makes_it_one(
    content: bytes, program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(content)
    assert main(["diagnose", str(log)]) == 2
    error = capsys.readouterr().err
    assert f"tunan: {log}: is not plain text: `{program}" in error


def test_a_log_that_breaks_off_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "/proc/self/mem"]) == 3
    assert "tunan: /proc/self/mem: " in capsys.readouterr().err
