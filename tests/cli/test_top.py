"""`tunan top`: what it shows of a machine, once and again."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ascend.fakebin.machine import FakeMachine, FakeProcess, a2
from tunan.cli.main import main

FAKEBIN = Path(__file__).parents[1] / "ascend/fakebin"
TOP = (sys.executable, "-m", "tunan", "top")


@pytest.fixture(autouse=True)
def no_service_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("tunan.supervisor.directories.LONG_TMPDIR_BASE", tmp_path)


def put(monkeypatch: pytest.MonkeyPatch, file: Path, machine: FakeMachine) -> None:
    """Lets npu-smi and hccn_tool tell of `machine`."""
    monkeypatch.setenv("PATH", f"{FAKEBIN}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_PYTHON", sys.executable)
    monkeypatch.setenv("FAKE_MACHINE", str(machine.write(file)))


def test_a_device_is_a_row_and_what_is_not_told_is_a_dash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = a2(2, link="DOWN", processes=(FakeProcess(0, 77, 512),))
    dies = (machine.dies[0], replace(machine.dies[1], health="Alarm", load="NA", power="-"))
    put(monkeypatch, tmp_path / "machine.json", replace(machine, dies=dies))
    assert main(["top", "--once"]) == 0
    host, _, _, _, first, second, *_, services = capsys.readouterr().out.rstrip().splitlines()
    assert ": memory " in host
    assert first.split() == ["0", "910B3", "OK", "0", "%", "3400/65536", "41", "95.5", "down", "1"]
    assert second.split() == ["1", "910B3", "Alarm", "-", "3400/65536", "41", "-", "down", "0"]
    assert services == "no service of this user is running; start one with `tunan serve`"


def test_without_npus_it_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["top", "--once"]) == 0
    assert "no NPU: npu-smi is not installed" in capsys.readouterr().out


def test_it_shows_again_names_what_is_gone_and_ends_on_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "machine.json"
    put(monkeypatch, file, a2(2))
    command = [*TOP, "--interval", "0.01"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert any(line.startswith("1    910B3") for line in process.stdout)
        a2(1).write(tmp_path / "next.json").replace(file)
        assert any(line == "NPU 1: gone\n" for line in process.stdout)
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(60) == 0


def test_ctrl_c_does_not_wait_for_a_tool_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "machine.json"
    put(monkeypatch, file, a2(1))
    command = [*TOP, "--interval", "0.01"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert any(line.startswith("0    910B3") for line in process.stdout)
        a2(1, hangs=True).write(tmp_path / "next.json").replace(file)
        time.sleep(0.5)  # for the next reading to begin
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=10)  # the tool itself would have 15 s
        assert process.returncode == 0
