"""`tunan status` and `tunan rollout`, of a fleet of fake engines in this process."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.supervisor.fleets import FakeFleet, running, use_fake_engines
from tunan.cli.main import main
from tunan.supervisor.control import CONTROL_SOCKET, controlled
from tunan.supervisor.directories import runtime_directory


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only place where services are looked for."""
    use_fake_engines(monkeypatch)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setattr("tunan.supervisor.directories.LONG_TMPDIR_BASE", Path(folder))
        yield Path(folder)


@contextlib.asynccontextmanager
async def service(count: int = 1, standby: int = 0, port: int = 8080) -> AsyncIterator[FakeFleet]:
    """A fleet whose replicas are all ready, with its control socket."""
    with runtime_directory() as runtime:
        fleet = FakeFleet(runtime, count, standby)
        fleet.address = f"http://127.0.0.1:{port}"
        async with running(fleet), controlled(runtime, fleet):
            await fleet.until(*[True] * (count + standby))
            yield fleet


async def tunan(*arguments: str) -> int:
    return await asyncio.to_thread(main, arguments)


def test_without_a_service_both_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("status", "rollout"):
        assert main([verb]) == 3
        assert "no service of this user is running" in capsys.readouterr().err


async def test_status_shows_every_replica(capsys: pytest.CaptureFixture[str]) -> None:
    async with service(count=1, standby=1) as fleet:
        await fleet.until_event("memory")
        assert await tunan("status") == 0
        head, _, _, active, standby = capsys.readouterr().out.splitlines()
        assert head == "tunan: fake at http://127.0.0.1:8080, ready"
        assert active.split()[:6] == ["replica-0", "active", "ready", "0", "1", "0"]
        assert standby.split()[:3] == ["replica-1", "standby", "ready"]
        assert await tunan("status", "--json") == 0
        (state,) = json.loads(capsys.readouterr().out)
        assert [replica["pid"] for replica in state["replicas"]] == [
            life.pid for life in fleet.lives
        ]
        assert state["replicas"][1]["memory"] > 0
        assert state["replicas"][0]["log"] == str(fleet.lives[0].plan.log)


async def test_a_service_that_is_not_ready_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    async with service() as fleet:
        fleet.behave(0, "hang")
        pid = fleet.lives[0].pid
        assert pid
        os.kill(pid, signal.SIGKILL)
        await fleet.until(False)
        assert await tunan("status") == 1
        assert "not ready" in capsys.readouterr().out


async def test_a_service_is_found_by_name_port_or_both(capsys: pytest.CaptureFixture[str]) -> None:
    async with service(port=8081), service(port=8082):
        for name, services in (("tunan", 2), ("8081", 1), ("tunan-8082", 1)):
            assert await tunan("status", name, "--json") == 0
            assert len(json.loads(capsys.readouterr().out)) == services
        assert await tunan("status", "other") == 3
        assert "running: tunan-8081, tunan-8082" in capsys.readouterr().err
        assert await tunan("rollout") == 2
        assert "name one: tunan-8081, tunan-8082" in capsys.readouterr().err


async def test_rollout_restarts_each_replica_and_tells_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with service(count=2) as fleet:
        assert await tunan("rollout") == 0
        assert capsys.readouterr().err.splitlines() == [
            "replica-0: draining 0 requests, then starting it again",
            "replica-0: ready",
            "replica-1: draining 0 requests, then starting it again",
            "replica-1: ready",
        ]
        assert [life.starts for life in fleet.lives] == [2, 2]
        assert await tunan("rollout", "--json") == 0
        assert json.loads(capsys.readouterr().out)["ready"] is True


async def test_a_refused_rollout_is_the_verbs_error(capsys: pytest.CaptureFixture[str]) -> None:
    async with service():
        assert await tunan("rollout") == 2
        assert "tunan: with one replica nobody would answer" in capsys.readouterr().err


async def test_what_is_no_question_is_refused(temporary: Path) -> None:
    async with service():
        (path,) = await asyncio.to_thread(lambda: [*temporary.glob(f"*/{CONTROL_SOCKET}")])
        for question in (b"\n", b"[]\n", b'{"verb": "kill"}\n', b"\xff\n", b"x" * 100_000 + b"\n"):
            answer = await asyncio.to_thread(_ask, path, question)
            assert answer["status"] == 2


def _ask(path: Path, question: bytes) -> dict[str, object]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(question)
        with connection.makefile("rb") as lines:
            answer: dict[str, object] = json.loads(lines.readline())
    return answer


def test_a_socket_that_a_killed_service_left_is_no_service(
    temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = temporary / "tunan-left"
    left.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(left / CONTROL_SOCKET))
    assert main(["status"]) == 3
    assert "no service" in capsys.readouterr().err


def test_a_service_that_hangs_is_not_taken_for_none(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tunan.supervisor.control_client.STATUS_PATIENCE_S", 0.1)
    hanging = temporary / "tunan-hanging"
    hanging.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(hanging / CONTROL_SOCKET))
        listener.listen()
        for verb in ("status", "rollout"):
            assert main([verb]) == 3
            assert "a service has not answered for 0.1 s" in capsys.readouterr().err
