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
from tests.telemetry.fake_pages import fake_pages
from tunan.cli.main import main

FAKEBIN = Path(__file__).parents[1] / "ascend/fakebin"


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_what_npu_smi_tells_until_it_is_stopped(
    ending: signal.Signals, tmp_path: Path
) -> None:
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
        with urllib.request.urlopen(match[1], timeout=60) as answer:
            text = answer.read().decode()
        assert len(re.findall(r"(?m)^npu_utilization\{", text)) == 4
        process.send_signal(ending)
        assert process.wait(60) == 0
        assert process.stderr.read() == ""


def test_a_port_that_is_taken_is_status_3(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["monitor", "--port", str(taken.getsockname()[1])]) == 3
    assert "choose another with --port" in capsys.readouterr().err


def test_the_deployment_file_says_the_port_and_options_win(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "deploy.yaml"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        file.write_text(f"model: {{path: /m}}\nmonitor: {{port: {port}}}\n", encoding="utf-8")
        assert main(["monitor", "--config", str(file)]) == 3
        assert f"127.0.0.1:{port}: " in capsys.readouterr().err
        file.write_text("model: {path: /m}\nmonitor: {port: 0}\n", encoding="utf-8")
        assert main(["monitor", "--config", str(file), "--port", str(port)]) == 3


@pytest.mark.parametrize(
    ("host", "status"), [("a..b", 2), ("a" * 300, 2), ("", 2), ("192.0.2.1", 3)]
)
def test_a_host_that_is_not_here_is_named(
    host: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["monitor", "--host", host, "--port", "0"]) == status
    error = capsys.readouterr().err
    assert "choose another with --host" in error
    assert len(error) < 200


@pytest.mark.parametrize("option", ["--port", "--interval"])
@pytest.mark.parametrize("value", ["x", "-1", "nan", "100000", ""])
def test_a_wrong_number_is_status_2(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["monitor", f"{option}={value}"])
    assert f"argument {option}: must be a number" in capsys.readouterr().err


@pytest.mark.parametrize("by", ["option", "file"])
def test_it_shows_the_metrics_of_others_beside_its_own(by: str, tmp_path: Path) -> None:
    with fake_pages() as there:
        there.show("# TYPE vllm:x gauge\nvllm:x 1\n")
        host, port = there.instance.split(":")
        file = tmp_path / "deploy.yaml"
        file.write_text(f"model: {{path: /m}}\ngateway: {{host: {host}, port: {port}}}\n")
        options = ["--scrape", there.url] if by == "option" else ["--config", str(file)]
        command = [sys.executable, "-m", "tunan", "monitor", "--port", "0", *options]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr
            line = process.stderr.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+/metrics", line)
            assert found, line
            assert line.endswith(f", with {there.instance}\n")
            with urllib.request.urlopen(found[0], timeout=60) as answer:
                text = answer.read().decode()
            assert f'vllm:x{{instance="{there.instance}"}} 1.0\n' in text
            assert "tunan_host_load1 " in text
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            assert process.stderr.read() == ""


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--scrape", "host:8080"), "argument --scrape: must be http://HOST:PORT"),
        (("--scrape", "http://a:b@c"), "argument --scrape: must have no user, password"),
        (("--no-scrape", "--scrape", "http://a"), "not allowed with argument --no-scrape"),
    ],
)
def test_a_page_that_cannot_be_asked_is_status_2(
    options: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["monitor", *options])
    assert line in capsys.readouterr().err


def test_no_scrape_shows_nobody_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_text("model: {path: /m}\n", encoding="utf-8")
    command = [sys.executable, "-m", "tunan", "monitor", "--port", "0", "--config", str(file)]
    with subprocess.Popen([*command, "--no-scrape"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        assert ", with " not in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
