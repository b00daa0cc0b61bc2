"""All that is known of errors, and which entries a line of a log belongs to."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tunan.diagnosis.codes import codes_in, known_codes
from tunan.diagnosis.entry import Entry

_ENTRIES = Path(__file__).with_name("entries")


@dataclass(frozen=True)
class Match:
    """An entry, with the named parts of the line that its pattern took (absent ones left out)."""

    entry: Entry
    parts: Mapping[str, str]


@dataclass(frozen=True)
class Knowledge:
    """`by_word` and `by_code` find the few entries whose patterns are worth trying on a line."""

    entries: tuple[Entry, ...]
    by_word: Mapping[str, tuple[Entry, ...]]
    by_code: Mapping[str, Entry]

    @property
    def words(self) -> frozenset[str]:
        """A line with none of these (in lower case) belongs to no entry."""
        return frozenset(
            (
                *filter(None, self.by_word),
                *(code.lower() for code in self.by_code),
                *map(str.lower, known_codes()),
            )
        )

    def matches(self, text: str, words: frozenset[str]) -> Iterator[Match]:
        """What a line is; `words` are its words in lower case."""
        found: set[str] = set()
        for word in (*(words & self.by_word.keys()), ""):
            for entry in self.by_word.get(word, ()):
                if entry.id not in found and (match := _match(entry, text)):
                    found.add(entry.id)
                    yield match
        for code in codes_in(text):
            entry_of = self.by_code.get(code)
            if entry_of and entry_of.id not in found:
                found.add(entry_of.id)
                yield Match(entry_of, {})


def _match(entry: Entry, text: str) -> Match | None:
    for pattern in entry.patterns:
        if match := pattern.search(text):
            parts = {name: part for name, part in match.groupdict().items() if part is not None}
            return Match(entry, parts)
    return None


@cache
def knowledge() -> Knowledge:
    """Every entry, in the order of their names; pydantic.ValidationError for one that is wrong."""
    entries = tuple(
        Entry.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
        for file in sorted(_ENTRIES.glob("*.toml"))
    )
    by_word: dict[str, list[Entry]] = {}
    for entry in entries:
        for word in entry.words or (("",) if entry.patterns else ()):
            by_word.setdefault(word, []).append(entry)
    by_code = {
        code: entry for entry in entries for code in (*map(str, entry.acl_codes), *entry.cann_codes)
    }
    return Knowledge(entries, {word: tuple(those) for word, those in by_word.items()}, by_code)


_WORD = re.compile(r"[a-z0-9_]+")
_TELLING = ("cause", "general", "vague", "consequence")


def entry_of(text: str) -> Entry | None:
    """The error that one line is, the most telling one of several; None if it is not known."""
    known = knowledge()
    matches = known.matches(text, frozenset(_WORD.findall(text.lower())))
    errors = [match.entry for match in matches if match.entry.kind in _TELLING]
    return min(errors, key=lambda entry: _TELLING.index(entry.kind), default=None)
