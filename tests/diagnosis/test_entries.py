"""The knowledge base: every entry is whole, found by its own examples and by nobody else's."""

import io
import re

import pytest

from tunan.diagnosis import diagnose_streams
from tunan.diagnosis.codes import decode
from tunan.diagnosis.entry import Entry
from tunan.diagnosis.knowledge import _ENTRIES, entry_of, knowledge

ENTRIES = knowledge().entries
by_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
IN_CHINESE = re.compile(r"[\u4e00-\u9fff]")


def test_the_catalogue_is_there() -> None:
    assert len(ENTRIES) >= 117 + 9  # the errors collected, and what the supervisor knew before
    assert len(ENTRIES) == len(list(_ENTRIES.iterdir()))


@by_entry
def test_an_entry_is_named_as_its_file(entry: Entry) -> None:
    assert (_ENTRIES / f"{entry.id}.toml").is_file()


@by_entry
def test_each_example_is_that_entry_and_no_other(entry: Entry) -> None:
    for example in entry.examples:
        found = diagnose_streams([("log", io.BytesIO(example.encode()))])
        assert set(found.findings.counts) == {entry.id}, example


@by_entry
def test_each_pattern_has_an_example(entry: Entry) -> None:
    for pattern in entry.patterns:
        assert any(
            pattern.search(line) for example in entry.examples for line in example.splitlines()
        ), pattern.pattern


@by_entry
def test_the_codes_of_an_entry_are_decoded(entry: Entry) -> None:
    for code in (*map(str, entry.acl_codes), *entry.cann_codes):
        assert decode(code) is not None


@by_entry
def test_both_languages_say_something_of_their_own(entry: Entry) -> None:
    for text in (entry.cause, entry.fix):
        assert not IN_CHINESE.search(text.en)
        assert IN_CHINESE.search(text.zh) or text.zh == text.en


def test_no_code_belongs_to_two_entries() -> None:
    codes = [code for entry in ENTRIES for code in (*map(str, entry.acl_codes), *entry.cann_codes)]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("RuntimeError: NPU out of memory. device id: 0", "npu-out-of-memory-outside-pool"),
        ("the inner error EZ9999: HBM Multi-bit ECC error occurred", "npu-memory-ecc"),
        ("EngineDeadError: EngineCore encountered an issue", None),
        ("all is well", None),
    ],
)
def test_one_line_is_the_most_telling_error_in_it(line: str, name: str | None) -> None:
    entry = entry_of(line)
    assert (entry.id if entry else None) == name


def test_an_unknown_key_in_an_entry_is_an_error() -> None:
    content = {**ENTRIES[0].model_dump(), "colour": "red"}
    with pytest.raises(ValueError, match="colour"):
        Entry.model_validate(content)


def test_an_entry_that_nothing_can_find_is_an_error() -> None:
    content = ENTRIES[0].model_dump() | {"patterns": (), "acl_codes": (), "cann_codes": ()}
    with pytest.raises(ValueError, match="neither patterns nor codes"):
        Entry.model_validate(content)
