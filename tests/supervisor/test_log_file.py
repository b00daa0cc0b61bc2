"""The engine's log file."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from tunan.errors import OutsideError
from tunan.supervisor.log_file import (
    KEPT,
    begin_anew,
    kept_small,
    log_of,
    read_new,
    start_afresh,
    tail_to_stderr,
)


def test_one_replica_has_one_log_and_several_have_one_each() -> None:
    state = Path("/state")
    assert log_of(state, "name", "127.0.0.1", 8080) == state / "name-8080" / "engine.log"
    assert log_of(state, "name", "127.0.0.1", 8080, 1) == state / "name-8080" / "engine-1.log"


def test_services_of_one_name_and_port_on_several_addresses_have_a_folder_each() -> None:
    hosts = ("127.0.0.1", "127.0.0.2", "0.0.0.0", "::1", "::", "host-1")
    folders = [log_of(Path("/state"), "name", host, 8080).parent.name for host in hosts]
    assert folders[1] == "name-8080-127.0.0.2"
    assert len(set(folders)) == len(hosts)
    assert not any(set(folder) & set("/:") for folder in folders)


def test_the_last_runs_logs_are_kept_beside_the_new_one(tmp_path: Path) -> None:
    log = tmp_path / "name-8080" / "engine.log"
    for number in range(KEPT + 2):
        start_afresh(log).write_text(f"run {number}")
    assert start_afresh(log).read_text() == ""
    kept = [log.with_name(f"engine.log.{number}") for number in range(1, KEPT + 1)]
    assert [file.read_text() for file in kept] == [f"run {n}" for n in range(KEPT + 1, 1, -1)]
    assert sorted(log.parent.iterdir()) == [log, *kept]


def test_a_log_that_is_begun_anew_is_the_same_file_to_whoever_writes_and_reads_it(
    tmp_path: Path,
) -> None:
    log = start_afresh(tmp_path / "engine.log")
    with log.open("ab", buffering=0) as engine, log.open("rb") as reader:
        for number in range(KEPT + 2):
            engine.write(f"part {number}\n".encode())
            assert read_new(reader) == f"part {number}\n".encode()
            begin_anew(log)
            assert read_new(reader) == b""
        engine.write(b"the newest\n")
        assert read_new(reader) == b"the newest\n"
    assert log.read_text() == "the newest\n"
    kept = [log.with_name(f"engine.log.{number}") for number in range(1, KEPT + 1)]
    assert [file.read_text() for file in kept] == [f"part {n}\n" for n in range(KEPT + 1, 1, -1)]
    assert sorted(tmp_path.iterdir()) == [log, *kept]
    assert all(file.stat().st_mode & 0o077 == 0 for file in kept)


async def test_only_a_log_that_is_too_large_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunan.supervisor.log_file.SIZE_POLL_S", 0.01)
    monkeypatch.setattr("tunan.supervisor.log_file.LARGEST", 100)
    log = start_afresh(tmp_path / "engine.log")
    log.write_text("a" * 100)
    async with kept_small(log):
        await asyncio.sleep(0.2)
        assert log.stat().st_size == 100
        log.write_text("b" * 101)
        while log.stat().st_size:  # noqa: ASYNC110  # a file
            await asyncio.sleep(0.01)
    assert log.with_name("engine.log.1").read_text() == "b" * 101


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    assert start_afresh(tmp_path / "engine.log").stat().st_mode & 0o077 == 0


def test_a_place_that_cannot_be_written_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutsideError, match="cannot write the log"):
        start_afresh(tmp_path / "file" / "name" / "engine.log")


async def test_a_log_that_nobody_reads_on_stderr_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FakeClosedPipe:
        asked = 0

        def write(self, _data: bytes) -> None:
            self.asked += 1
            raise BrokenPipeError

    pipe = FakeClosedPipe()
    monkeypatch.setattr("sys.stderr", SimpleNamespace(buffer=pipe))
    log = start_afresh(tmp_path / "engine.log")
    log.write_text("a line\n")
    async with tail_to_stderr(log):
        while not pipe.asked:  # noqa: ASYNC110  # a plain number
            await asyncio.sleep(0.01)
