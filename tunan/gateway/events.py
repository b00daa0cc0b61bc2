"""vLLM's event stream, cut into events with as little parsing as possible.

Nearly every event of a stream is one token of plain text. Those match one regular
expression, from which the token ids and the length of the text are taken; what the client
gets are the same bytes with the ids it did not ask for put back to `null`. Any other event
is parsed as JSON.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tunan.gateway.lost import Lost

DONE = b"data: [DONE]"
_END, _OTHER_END = b"\n\n", b"\r\n\r\n"
_DATA = b"data:"
LARGEST_EVENT = 16 << 20  # bytes; the first one has the ids of the whole prompt

_STRING = rb'"((?:[^"\\]|\\.)*+)"'
_HEAD = (
    rb'data: \{"id":"[^"\\]*+","object":"(?:text_completion|chat\.completion\.chunk)",'
    rb'"created":\d++,"model":"[^"\\]*+","choices":\[\{"index":0,'
)
_PLAIN = re.compile(
    _HEAD
    + rb'(?:"delta":\{"content":|"text":)'
    + _STRING
    + rb'\}?,"logprobs":null,"finish_reason":null,(?:"stop_reason":null,)?'
    + rb'(?:"prompt_token_ids":null,)?"token_ids":\[([0-9,]++)\]\}\]\}\n\n'
)


@dataclass(frozen=True)
class TokenEvent:
    """Plain text of some tokens: the whole event, its ids (`1,2`), its text still escaped."""

    raw: bytes
    ids: bytes
    text: bytes
    ids_start: int
    ids_end: int

    @property
    def without_ids(self) -> bytes:
        """As vLLM writes it for a client that did not ask for the ids."""
        return b"%bnull%b" % (self.raw[: self.ids_start], self.raw[self.ids_end :])

    @property
    def characters(self) -> int:
        """Length of the text in code points, as Python counts. Raises `Lost`."""
        if b"\\" not in self.text and self.text.isascii():
            return len(self.text)
        try:
            return len(json.loads(b'"%b"' % self.text))
        except ValueError:
            raise Lost("garbage", "text that is no text") from None


class EventCutter:
    """Takes chunks of bytes as they come, gives whole events; half an event is kept back."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator["TokenEvent | bytes"]:
        """The events that `chunk` completes: a `TokenEvent`, or the bytes of any other one.

        Raises `Lost` where no event can be made of what comes.
        """
        data = self._rest + chunk if self._rest else chunk
        position = 0
        while position < len(data):
            if match := _PLAIN.match(data, position):
                start, end = match.span()
                ids_start, ids_end = match.span(2)
                yield TokenEvent(
                    data[start:end],
                    match[2],
                    match[1],
                    ids_start - 1 - start,
                    ids_end + 1 - start,
                )
                position = end
                continue
            end = _end_of_event(data, position)
            if end < 0:
                break
            yield data[position:end]
            position = end
        self._rest = data[position:]
        if len(self._rest) > LARGEST_EVENT:
            raise Lost("garbage", "an event without an end")


def _end_of_event(data: bytes, position: int) -> int:
    """Where the event at `position` ends; -1: later. Other servers than vLLM's end lines so too."""
    for mark in (_END, _OTHER_END):
        if (end := data.find(mark, position)) >= 0:
            return end + len(mark)
    return -1


def is_done(event: bytes) -> bool:
    """Whether it is the last of a whole stream."""
    return event.startswith(_DATA) and event[len(_DATA) :].strip() == b"[DONE]"


def parse(event: bytes) -> dict[str, Any] | None:
    """The JSON object of a `data:` event; None for `[DONE]` and comments. Raises `Lost`."""
    line = event.rstrip()
    if is_done(event) or not line or line.startswith(b":"):
        return None
    try:
        content = json.loads(line.removeprefix(_DATA)) if line.startswith(_DATA) else None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise Lost("garbage", "bytes that are no event")
    return content


def encode(content: dict[str, Any]) -> bytes:
    """One `data:` event, in vLLM's compact form."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return b"data: " + text.encode("utf-8", errors="surrogatepass") + _END
