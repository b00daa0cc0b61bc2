"""Greedy streams that run at the same time, and what came of each."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from tests.serving import Served

PATIENCE_S = 240


class Streams:
    """Streams of `served`, one a prompt, each of `length` tokens."""

    def __init__(
        self, served: Served, pool: ThreadPoolExecutor, prompts: list[list[int]], length: int
    ) -> None:
        self._served, self._length = served, length
        self._came = dict.fromkeys(range(len(prompts)), 0)
        self._changed = threading.Condition()
        self._running: list[Future[list[int]]] = [
            pool.submit(self._read, index, prompt) for index, prompt in enumerate(prompts)
        ]

    def _read(self, index: int, prompt: list[int]) -> list[int]:
        """The token ids of a stream that comes to its proper end."""
        tokens: list[int] = []
        text, ended = "", False
        for chunk in self._served.stream(self._length, prompt=prompt, return_token_ids=True):
            *events, text = (text + chunk).split("\n\n")
            for event in (json_of(event) for event in events):
                ended = event == "[DONE]"
                if not ended:
                    tokens += json.loads(event)["choices"][0]["token_ids"]
            with self._changed:
                self._came[index] = len(tokens)
                self._changed.notify_all()
        assert ended, f"a stream of {len(tokens)} tokens ended without [DONE]"
        return tokens

    def wait_for(self, tokens: int) -> None:
        """Returns when each stream has had so many tokens; raises what one of them ended with."""
        deadline = time.monotonic() + PATIENCE_S
        while min(self._came.values()) < tokens:
            for stream in self._running:
                if stream.done():
                    stream.result()
            assert time.monotonic() < deadline, self._came
            with self._changed:
                self._changed.wait(1)

    def tokens(self) -> list[list[int]]:
        """All tokens of each stream, when all have ended."""
        return [stream.result(PATIENCE_S) for stream in self._running]


def json_of(event: str) -> str:
    """What an event carries; fails if it is an error."""
    data = event.removeprefix("data: ")
    assert '"error"' not in data, data
    return data


@contextmanager
def streaming(served: Served, prompts: list[list[int]], length: int) -> Iterator[Streams]:
    """The streams while the block runs."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        yield Streams(served, pool, prompts, length)
