"""Where caches, logs and sockets go."""

import shutil
import tempfile
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
    path = runtime_directory()
    try:
        assert len(str(path)) < 60
        assert path.stat().st_mode & 0o077 == 0
    finally:
        shutil.rmtree(path)
