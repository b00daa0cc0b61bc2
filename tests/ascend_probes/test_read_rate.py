"""The timed read of a file."""

import os
from pathlib import Path

import pytest

from tunan.ascend.probes.read_rate import read_rate


def test_a_file_is_timed_where_it_can_be_read_directly(tmp_path: Path) -> None:
    path = tmp_path / "block"
    path.write_bytes(bytes(8 << 20))
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("this file system has no direct reads")
    rate = read_rate(path)
    assert rate
    assert rate > 0


def test_a_small_file_is_not_timed(tmp_path: Path) -> None:
    path = tmp_path / "block"
    path.write_bytes(bytes(4096))
    assert read_rate(path) is None


def test_a_file_that_is_not_there_is_not_timed(tmp_path: Path) -> None:
    assert read_rate(tmp_path / "missing") is None
