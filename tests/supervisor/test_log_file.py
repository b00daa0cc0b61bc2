"""The engine's log file."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from tunan.errors import OutsideError
from tunan.supervisor.log_file import KEPT, log_of, start_afresh, tail_to_stderr


def test_one_replica_has_one_log_and_several_have_one_each() -> None:
    state = Path("/state")
    assert log_of(state, "name", 8080) == state / "name-8080" / "engine.log"
    assert log_of(state, "name", 8080, 1) == state / "name-8080" / "engine-1.log"


def test_the_last_runs_logs_are_kept_beside_the_new_one(tmp_path: Path) -> None:
    log = tmp_path / "name-8080" / "engine.log"
    for number in range(KEPT + 2):
        start_afresh(log).write_text(f"run {number}")
    assert start_afresh(log).read_text() == ""
    kept = [log.with_name(f"engine.log.{number}") for number in range(1, KEPT + 1)]
    assert [file.read_text() for file in kept] == [f"run {n}" for n in range(KEPT + 1, 1, -1)]
    assert sorted(log.parent.iterdir()) == [log, *kept]


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
