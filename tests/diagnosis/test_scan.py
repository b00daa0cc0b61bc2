"""Reading logs in pieces."""

import io

import pytest

from tunan.diagnosis import scan
from tunan.diagnosis.scan import Candidate, Scan


def _numbers(data: bytes, words: frozenset[str] = frozenset({"needle"})) -> list[int]:
    taken: list[Candidate] = []

    def take(candidate: Candidate) -> bool:
        taken.append(candidate)
        return True

    Scan(words, take).read(io.BytesIO(data))
    return [candidate.number for candidate in taken]


def test_lines_keep_their_numbers_over_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "PIECE_BYTES", 7)
    assert _numbers(b"a\nb\nthe needle here\n\nneedle\nx") == [3, 5]


def test_a_word_is_found_between_any_signs() -> None:
    assert _numbers(b"x\n[Needle]=3\nneedles\nmy_needle\n") == [2]


def test_the_last_line_needs_no_end() -> None:
    assert _numbers(b"a\nneedle") == [2]


def test_of_a_line_without_end_only_the_beginning_is_kept() -> None:
    huge = b"x" * (3 << 20)
    assert _numbers(b"needle " + huge + b"\nneedle\n" + huge + b" needle\nneedle") == [1, 2, 4]


def test_a_shape_that_said_nothing_is_not_looked_at_again() -> None:
    looked: list[int] = []

    def take(candidate: Candidate) -> bool:
        looked.append(candidate.number)
        return False

    reader = Scan(frozenset({"needle"}), take)
    reader.read(io.BytesIO(b"needle 1\nneedle 2\nneedle three\n"))
    assert looked == [1, 3]
    assert reader.extent.lines == 3


@pytest.mark.parametrize("second", [b"ret is 507018", b"at EI0006, x"])
def test_lines_that_differ_in_a_code_are_each_looked_at(second: bytes) -> None:
    first = second.replace(b"507018", b"999999").replace(b"EI0006", b"EI0000")
    words = frozenset({"507018", "ei0006"})
    assert _numbers(first + b"\n" + second, words) == [2]


def test_bytes_that_are_no_text_do_no_harm() -> None:
    assert _numbers(bytes(range(256)) * 3 + b"\nneedle") == [5]
