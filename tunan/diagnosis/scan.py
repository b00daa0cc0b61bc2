"""Reads a log of any size in pieces and keeps the lines that may say something.

Nearly all lines of an engine's log are of no interest, and most differ from earlier ones in numbers
only. Digits are made alike in one call for a whole piece, and a line whose shape was of no interest
before is passed over. Of a new shape the words are looked at.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from tunan.errors import UsageError

PIECE_BYTES = 1 << 20
LONGEST_LINE = 16 * 1024  # bytes looked at; vLLM's longest are its settings
MOST_SHAPES = 50_000
_DIGITS = bytes(ord("0") if byte in b"0123456789" else byte for byte in range(256))
_FOLD = bytes(
    ord(chr(byte).lower()) if byte < 128 and (chr(byte).isalnum() or byte in b"_\n") else ord(" ")
    for byte in range(256)
)
# An exception has any name, CANN's messages and MindIE's have any code, but all have one of these.
_SIGNS = (b"Error", b"Exception", b".exc.", b"Traceback", b"[PID", b"MIE", b"!!!!!!")
_CANN_CODE = re.compile(rb"(?:^|[\s)\]])E[A-Z0-9]\d{4}: ")  # also one that is in no list
# What no line of a text begins with, and what makes a text of it.
_NO_TEXT = {
    b"\x1f\x8b": "zcat",
    b"\x28\xb5\x2f\xfd": "zstdcat",
    b"\xfd7zXZ": "xzcat",
    b"BZh9": "bzcat",
    b"PK\x03\x04": "unzip -p",
    b"LPKSHHRH": "journalctl --file",
    b"\xff\xfe\x00\x00": "iconv -f UTF-32 -t UTF-8",
    b"\xff\xfe": "iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "iconv -f UTF-16 -t UTF-8",
}
_LOOKED_AT = 4096  # bytes, for what has no such beginning
_NO_SIGNS = bytes({*range(1, 32), 127} - set(b"\t\n\r\x1b\x08\x0c"))  # of any text
_TOO_MANY_OF_THEM = 0.03
# Shapes whose digits decide: a status of ACL, a code of CANN.
_CODES = re.compile(
    rb"(?i:code|ret|status|failed|error|result)\W{0,4}(?:is\W{0,2})?0{6}(?!0)|E[A-Z0]0{4}(?!0)"
)


@dataclass(frozen=True)
class Candidate:
    """A line that may say something. `number` counts from 1; `words` are those looked for."""

    number: int
    line: bytes
    words: frozenset[str]


@dataclass
class Extent:
    """How much was read."""

    lines: int = 0
    size: int = 0


Take = Callable[[Candidate], bool]


class Scan:
    """Hands lines with one of `words`, or with what exceptions and CANN's messages have, to `take`,
    whose answer is whether the line was of interest. What a line has beyond 16 KiB is not looked
    at. `extent` counts what has been read."""

    def __init__(self, words: frozenset[str], take: Take) -> None:
        self.extent = Extent()
        self._wanted = frozenset(word.encode() for word in words)
        self._take = take
        self._dull: set[bytes] = set()
        self._said = 0  # lines of interest

    def read(self, file: BinaryIO, name: str = "-") -> None:
        """Reads a log to its end. Raises OSError, and UsageError if it is compressed, UTF-16 or no
        text that says anything, both with its `name`."""
        try:
            self._read(file, name)
        except OSError as error:
            raise OSError(error.errno, error.strerror, name) from None

    def _read(self, file: BinaryIO, name: str) -> None:
        before, self.extent.lines = self.extent.lines, 0
        begun, odd, said_before = b"", None, self._said
        while piece := file.read(PIECE_BYTES):
            if odd is None:
                _refuse_what_is_no_text(piece, name)
                odd = _is_odd(piece)
            self.extent.size += len(piece)
            if b"\0" in piece:  # the hole where a log was emptied while it was written
                piece = piece.replace(b"\0", b"")
            whole, end, rest = piece.rpartition(b"\n")
            if not end:
                begun = (begun + piece)[:LONGEST_LINE]
                continue
            self._read_lines(begun + whole)
            begun = rest[:LONGEST_LINE]
        if begun:
            self._read_lines(begun)
        self.extent.lines += before
        if odd and self._said == said_before:
            raise UsageError(f"{name}: is not a text, so no log; give what the engine printed")

    def _read_lines(self, piece: bytes) -> None:
        first = self.extent.lines + 1
        lines = piece.split(b"\n")
        self.extent.lines += len(lines)
        shapes = piece.translate(_DIGITS).split(b"\n")
        for number, (line, shape) in enumerate(zip(lines, shapes, strict=True), first):
            if shape in self._dull:
                continue
            if not self._is_of_interest(number, line[:LONGEST_LINE]) and not _CODES.search(shape):
                if len(self._dull) >= MOST_SHAPES:
                    self._dull.clear()
                self._dull.add(shape)

    def _is_of_interest(self, number: int, line: bytes) -> bool:
        words = self._wanted.intersection(line.translate(_FOLD).split())
        if not (words or any(sign in line for sign in _SIGNS) or _CANN_CODE.search(line)):
            return False
        says = self._take(Candidate(number, line, frozenset(word.decode() for word in words)))
        self._said += says
        return says


def _refuse_what_is_no_text(begin: bytes, name: str) -> None:
    """What cannot be read must not pass for a log without an error."""
    for magic, program in _NO_TEXT.items():
        if begin.startswith(magic):
            raise UsageError(f"{name}: is not plain text: `{program} {name} | tunan diagnose -`")
    looked_at = begin[: _LOOKED_AT & ~1]
    for encoding, high in (("UTF-16LE", 1), ("UTF-16BE", 0)):
        zeros = looked_at[high::2].count(0), looked_at[1 - high :: 2].count(0)
        if zeros[0] > len(looked_at) / 4 and not zeros[1]:
            program = f"iconv -f {encoding} -t UTF-8"
            raise UsageError(f"{name}: is not plain text: `{program} {name} | tunan diagnose -`")


def _is_odd(begin: bytes) -> bool:
    looked_at = begin[:_LOOKED_AT]
    odd = len(looked_at) - len(looked_at.translate(None, _NO_SIGNS))
    return odd > _TOO_MANY_OF_THEM * len(looked_at)
