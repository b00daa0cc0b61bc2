import json
import socket
from pathlib import Path

import pytest

from tunan.engine.progress import PROGRESS_SOCKET, Progress


def test_each_report_is_one_datagram(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = tmp_path / "s"
    monkeypatch.setenv(PROGRESS_SOCKET, str(address))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(address))
        Progress.from_environment(3).report(2, 5)
        assert json.loads(listener.recv(4096)) == {
            "stage": "loading",
            "done": 2,
            "total": 5,
            "rank": 3,
        }


def test_nobody_listening_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROGRESS_SOCKET, str(tmp_path / "nobody"))
    Progress.from_environment(0).report(1, 1)


def test_a_full_listener_does_not_hold_up_the_loader(tmp_path: Path) -> None:
    address = tmp_path / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(address))
        for done in range(2000):
            Progress(str(address), 0).report(done, 2000)


def test_without_the_variable_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PROGRESS_SOCKET, raising=False)
    assert Progress.from_environment(0).address is None
