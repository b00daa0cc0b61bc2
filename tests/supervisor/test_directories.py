"""Where caches, logs and sockets go."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tunan.supervisor.directories import Directories, runtime_directory


def test_xdg_variables_are_followed_unless_relative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    directories = Directories.of_user()
    assert directories.cache == Path("/c/tunan")
    assert directories.state == Path.home() / ".local/state/tunan"


def test_sockets_get_a_short_private_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 60)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with runtime_directory() as path:
        assert len(str(path)) < 60
        assert path.stat().st_mode & 0o077 == 0
    assert not path.exists()


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short folder of its own for temporary files."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


HOLD = """
import sys, time
from tunan.supervisor.directories import runtime_directory
with runtime_directory() as path:
    print(path, flush=True)
    time.sleep(60)
"""


def test_what_a_killed_run_left_is_removed_at_the_next_start(temporary: Path) -> None:
    environment = os.environ | {"TMPDIR": str(temporary)}
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True, env=environment
    ) as run:
        assert run.stdout is not None
        left = Path(run.stdout.readline().strip())
        with runtime_directory():
            assert left.is_dir()  # the other run is alive
        run.kill()
        run.wait()
        assert left.is_dir()
        with runtime_directory() as path:
            assert [*temporary.iterdir()] == [path]


def test_a_directory_that_is_not_ours_stays(temporary: Path) -> None:
    other = temporary / "tunan-of-somebody"
    other.mkdir()
    with runtime_directory():
        assert other.is_dir()
