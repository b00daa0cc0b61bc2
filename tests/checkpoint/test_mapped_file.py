import mmap
from pathlib import Path

import pytest

from tunan.checkpoint.mapped_file import MappedFile
from tunan.errors import CheckFailedError


def test_bytes_read_the_same_before_and_after_any_advice(tmp_path: Path) -> None:
    path = tmp_path / "x"
    content = bytes(range(256)) * (5 * mmap.PAGESIZE // 256) + b"tail"
    path.write_bytes(content)
    file = MappedFile(path)
    ends = [0, 1, mmap.PAGESIZE - 1, mmap.PAGESIZE, 3 * mmap.PAGESIZE + 7, len(content)]
    for start in ends:
        for stop in ends:
            file.will_need(start, stop)
            file.release(start, stop)
            assert file.bytes[:] == content


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(CheckFailedError, match="the file is empty"):
        MappedFile(tmp_path / "x")


def test_the_file_itself_is_never_changed_through_the_mapping(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"before")
    MappedFile(tmp_path / "x").bytes[:] = b"after!"
    assert (tmp_path / "x").read_bytes() == b"before"
