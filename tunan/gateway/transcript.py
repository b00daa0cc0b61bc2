"""What a client has of an answer, and where another replica may take it up.

The text is a function of the ids, but it lags behind them: the engine keeps back a
character whose bytes are not all there and, with stop strings, as many characters as the
longest has less one. So the cut is taken up at a *mark*: a number of ids whose text is
known to end at a character's end, and to be known in length. What the replica then says
again is dropped.
"""

import json
from array import array
from collections import deque
from collections.abc import Iterable
from typing import Any

MARKS = 512  # with stop strings one has to go back as many characters as the longest one has


class Transcript:
    """Ids and length of one answer, choice 0.

    `stop_tail` is the length in characters of the longest stop string less one; `held_back`
    says whether the engine keeps that much of the text until it is sure.
    """

    def __init__(self, stop_tail: int, held_back: bool, limit_bytes: int) -> None:
        self.prompt_ids = array("I")
        self.head: dict[str, Any] = {}  # id, created, model of the first event
        self.count = 0  # ids received, of which the text may be kept back
        self.characters = 0  # of text sent
        self.finished = ""  # finish_reason, once it was sent
        self.logprob_offset = 0  # where the next token's text begins, as logprobs count
        self.complete = True  # False: not every id is known, so it cannot be continued
        self._ids = bytearray()
        self._limit = limit_bytes
        self._prompt_bytes = 0
        self._tail = stop_tail
        self._lag = stop_tail if held_back else 0
        self._marks: deque[tuple[int, int]] = deque(maxlen=MARKS)

    def note(self, ids: bytes, characters: int, clean: bool = True) -> None:
        """One event: `ids` as JSON without brackets, `characters` newly sent.

        Not `clean`: the end of the text sent need not be the end of these ids' text.
        """
        one = b"," not in ids
        self._ids += ids
        self._ids += b","
        self.count += 1 if one else ids.count(b",") + 1
        self.characters += characters
        # Of several ids the last may have its character kept back; of one it has not if
        # there is any text.
        if one and characters and clean:
            self._marks.append((self.count, self.characters + self._lag))
        if len(self._ids) + self._prompt_bytes > self._limit:
            self.forget()

    def note_list(self, ids: list[int], characters: int, clean: bool = True) -> None:
        """The same for ids that are parsed already, which may be none."""
        if ids:
            self.note(b",".join(b"%d" % i for i in ids), characters, clean)
        else:
            self.characters += characters

    def begin(self, prompt_ids: Iterable[int]) -> None:
        """The ids of the prompt are known."""
        self.prompt_ids = array("I", prompt_ids)
        self._prompt_bytes = self.prompt_ids.itemsize * len(self.prompt_ids)
        if self._prompt_bytes > self._limit:
            self.forget()

    def forget(self) -> None:
        """It cannot be continued any more: nothing needs to be remembered."""
        self.complete = False
        self.prompt_ids = array("I")
        self._ids.clear()
        self._marks.clear()

    @property
    def ids(self) -> list[int]:
        """All ids received."""
        parsed: list[int] = json.loads(b"[" + self._ids[:-1] + b"]")
        return parsed

    def take_up(self) -> tuple[int, int]:
        """Where to go on: how many ids are kept, and the characters of their text.

        A stop string that is yet to come begins in the text after it, because all text but
        the last `stop_tail` characters has been searched.
        """
        searched = self.characters + self._lag - self._tail
        for count, characters in reversed(self._marks):
            if characters <= searched:
                return count, characters
        return 0, 0
