"""The engine's log file."""

from pathlib import Path

import pytest

from tunan.errors import OutsideError
from tunan.supervisor.log_file import fresh_log


def test_the_last_runs_log_is_kept_beside_the_new_one(tmp_path: Path) -> None:
    log = fresh_log(tmp_path, "name", 8080)
    log.write_text("old")
    assert fresh_log(tmp_path, "name", 8080).read_text() == ""
    assert log.with_name("engine.log.1").read_text() == "old"


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    assert fresh_log(tmp_path, "name", 8080).stat().st_mode & 0o077 == 0


def test_a_place_that_cannot_be_written_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutsideError, match="cannot write the log"):
        fresh_log(tmp_path / "file", "name", 8080)
