"""`tunan monitor` as a process."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.ascend.fakebin.machine import a2
from tunan.cli.main import main

FAKEBIN = Path(__file__).parents[1] / "ascend/fakebin"


def test_it_serves_what_npu_smi_tells_and_ends_on_sigterm(tmp_path: Path) -> None:
    environment = os.environ | {
        "PATH": f"{FAKEBIN}:{os.environ['PATH']}",
        "FAKE_PYTHON": sys.executable,
        "FAKE_MACHINE": str(a2(4).write(tmp_path / "machine.json")),
    }
    command = [sys.executable, "-m", "tunan", "monitor", "--port", "0", "--interval", "60"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        line = process.stderr.readline()
        match = re.fullmatch(r"monitor: (http://127\.0\.0\.1:\d+/metrics), 4 NPUs\n", line)
        assert match, line
        with urllib.request.urlopen(match[1], timeout=30) as answer:
            text = answer.read().decode()
        assert len(re.findall(r"(?m)^npu_utilization\{", text)) == 4
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_a_port_that_is_taken_is_status_3(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["monitor", "--port", str(taken.getsockname()[1])]) == 3
    assert "choose another with --port" in capsys.readouterr().err
