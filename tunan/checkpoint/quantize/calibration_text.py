"""The start of a file as text to run a model on: no more of it than can be used."""

import codecs
from pathlib import Path

from tunan.errors import CheckFailedError

# Above what 16384 tokens take: 64 bytes a token, where English takes 4 or 5.
MOST_BYTES = 1 << 20
# A line or two: blanks and dots alone show nothing of how a model is used.
LEAST_LETTERS = 128


def start_of(path: Path) -> str:
    """The first `MOST_BYTES` of a UTF-8 file, cut at a character, line ends as "\\n".

    Raises CheckFailedError, naming the file, for what is no text or has fewer than
    `LEAST_LETTERS` letters and digits there; OSError if it cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(MOST_BYTES)
    whole = len(content) < MOST_BYTES
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(content, final=whole)
    except UnicodeDecodeError as error:
        raise CheckFailedError(
            f"{path}: not UTF-8 text (byte {error.start}); give a plain text file in UTF-8"
        ) from error
    if "\0" in text:
        raise CheckFailedError(f"{path}: holds NUL bytes, so it is no text; give a plain text file")
    letters = sum(map(str.isalnum, text))
    if letters < LEAST_LETTERS:
        raise CheckFailedError(
            f"{path}: {letters} letters and digits in its first {len(content)} bytes, at least "
            f"{LEAST_LETTERS} are needed to run a model on; give a longer text, best a few pages"
        )
    return text.replace("\r\n", "\n").replace("\r", "\n")
