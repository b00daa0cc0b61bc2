"""The text that a model is run on: how much of a file is read, and what is refused."""

from pathlib import Path

import pytest

from tunan.checkpoint.quantize.calibration_text import LEAST_LETTERS, MOST_BYTES, start_of
from tunan.checkpoint.quantize.kv_cache import Calibration
from tunan.errors import CheckFailedError

LETTERS = b"kun" * LEAST_LETTERS


def written(directory: Path, content: bytes) -> Path:
    path = directory / "own.txt"
    path.write_bytes(content)
    return path


def test_of_a_file_larger_than_memory_only_the_start_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, b"a" * MOST_BYTES)
    with path.open("r+b") as file:
        file.truncate(1 << 40)
    assert Calibration(path).text == "a" * MOST_BYTES


def test_the_cut_falls_between_characters(tmp_path: Path) -> None:
    path = written(tmp_path, "\u9e4f".encode() * MOST_BYTES)
    assert start_of(path) == "\u9e4f" * (MOST_BYTES // 3)


def test_a_character_that_the_file_itself_cuts_off_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(CheckFailedError, match=r"own\.txt: not UTF-8 text"):
        start_of(written(tmp_path, LETTERS + "\u9e4f".encode()[:2]))


def test_line_ends_are_as_in_any_text(tmp_path: Path) -> None:
    assert start_of(written(tmp_path, LETTERS + b"\r\na\rb")) == LETTERS.decode() + "\na\nb"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"0 letters and digits .* at least 128"),
        (b"ab", r"2 letters and digits"),
        (b" \n" * 10_000, r"0 letters and digits"),
        (b"." * 10_000, r"0 letters and digits"),
        (bytes(10_000), "NUL bytes"),
        (LETTERS + b"\0", "NUL bytes"),
        (b"\xff\xfe" + LETTERS, r"not UTF-8 text \(byte 0\)"),
    ],
)
def test_what_is_no_text_to_run_on_is_refused_by_name(
    tmp_path: Path, content: bytes, message: str
) -> None:
    with pytest.raises(CheckFailedError, match=rf"own\.txt: .*{message}"):
        start_of(written(tmp_path, content))
