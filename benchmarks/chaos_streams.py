"""The clients of the chaos benchmark: streams that note every token and when it came."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
SAMPLED = {"temperature": 0.8, "top_p": 0.95}
TOPICS = (
    "the north sea",
    "a fish called Kun",
    "a bird called Peng",
    "the great wind",
    "a small dove",
    "the southern darkness",
    "an old tree",
    "a traveller with three meals",
)
PATIENCE_S = 180.0
CONNECT_S, AGAIN_S = 0.5, 0.05  # of a client that asks again


@dataclass(frozen=True)
class Ask:
    """One request; `name` says which of the load's it is."""

    name: str
    path: str
    body: dict[str, Any]


@dataclass
class Received:
    """What a client got: tokens, text and `times` (time.perf_counter) of the events with tokens.

    `began` and `ended` bound the request; `problem` says why it is no whole answer, "" if it is.
    """

    began: float
    ids: list[int] = field(default_factory=list)
    text: str = ""
    times: list[float] = field(default_factory=list)
    finish: str = ""
    usage: int = -1
    problem: str = ""
    ended: float = 0.0

    @property
    def longest_gap_s(self) -> float:
        """The longest the client waited for a token after the first; 0 with fewer than two."""
        gaps = (later - sooner for sooner, later in zip(self.times, self.times[1:], strict=False))
        return max(gaps, default=0.0)


def load(model: str, streams: int, tokens: int) -> list[Ask]:
    """`streams` different requests: by turns greedy and seeded, completions and chat."""
    asks = []
    for number in range(streams):
        topic = TOPICS[number % len(TOPICS)]
        seeded, chat = number % 2 == 1, number % 4 >= 2
        words = f"Tell a story about {topic}, part {number}."
        body: dict[str, Any] = {"messages": [{"role": "user", "content": words}]}
        body = body if chat else {"prompt": words}
        body |= {**SAMPLED, "seed": number} if seeded else {"temperature": 0}
        body |= {"model": model, "stream": True, "max_tokens": tokens, "ignore_eos": True}
        body |= {"return_token_ids": True, "stream_options": {"include_usage": True}}
        kind = f"{'seeded' if seeded else 'greedy'} {'chat' if chat else 'completion'}"
        asks.append(Ask(f"{number} {kind}", CHAT if chat else COMPLETION, body))
    return asks


async def receive(
    client: aiohttp.ClientSession, url: str, ask: Ask, progress: "Progress | None" = None
) -> Received:
    """Sends one request and reads its answer to the end, or to where it breaks."""
    received = Received(time.perf_counter())
    try:
        async with (
            asyncio.timeout(PATIENCE_S),
            client.post(url + ask.path, json=ask.body) as answer,
        ):
            if answer.status != 200:
                received.problem = f"status {answer.status}: {(await answer.text())[:200]}"
            else:
                await _read(answer, received, progress)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        received.problem = f"{type(error).__name__}: {error}"[:200]
    received.ended = time.perf_counter()
    if not received.problem and not received.finish:
        received.problem = "ended without a finish_reason"
    return received


async def _read(
    answer: aiohttp.ClientResponse, received: Received, progress: "Progress | None"
) -> None:
    whole = False
    async for line in answer.content:
        if not line.startswith(b"data: "):
            continue
        if line.strip() == b"data: [DONE]":
            whole = True
            continue
        event = json.loads(line[6:])
        if "error" in event:
            received.problem = f"error event: {event['error'].get('message', '')}"[:200]
            return
        if event.get("usage"):
            received.usage = int(event["usage"]["completion_tokens"])
        for choice in event.get("choices", ()):
            _take(choice, received, progress)
    if not whole:
        received.problem = "ended without [DONE]"


def _take(choice: dict[str, Any], received: Received, progress: "Progress | None") -> None:
    ids = choice.get("token_ids") or []
    if ids:
        received.ids += ids
        received.times.append(time.perf_counter())
        if progress is not None:
            progress.add(len(ids))
    received.text += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
    received.finish = choice.get("finish_reason") or received.finish


class Progress:
    """Counts tokens of all streams, for events that wait for so many."""

    def __init__(self) -> None:
        self.tokens = 0
        self._more = asyncio.Event()

    def add(self, tokens: int) -> None:
        """So many more came."""
        self.tokens += tokens
        self._more.set()

    async def reaches(self, tokens: int) -> None:
        """Returns once so many have come in all."""
        while self.tokens < tokens:
            self._more.clear()
            await self._more.wait()


@dataclass
class Round:
    """Every answer of one run of the load, by the name of its request."""

    answers: list[tuple[str, Received]] = field(default_factory=list)


async def run_load(
    url: str, asks: Sequence[Ask], progress: Progress, enough: asyncio.Event
) -> Round:
    """Sends all requests at once, and each again as it ends until `enough`; at least once."""
    found = Round()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as client:

        async def repeat(ask: Ask) -> None:
            while True:
                found.answers.append((ask.name, await receive(client, url, ask, progress)))
                if enough.is_set():
                    return

        await asyncio.gather(*(repeat(ask) for ask in asks))
    return found


async def run_persistent(
    url: str, asks: Sequence[Ask], progress: Progress
) -> list[tuple[str, list[Received]]]:
    """Each request's attempts that were answered, all but the last of them cut off.

    A client whose connection broke asks again, on a new one, until it has a whole answer.
    """
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as client:

        async def insist(ask: Ask) -> tuple[str, list[Received]]:
            answers: list[Received] = []
            while True:
                one = await receive(client, url, ask, progress)
                if one.ids or not one.problem:
                    answers.append(one)
                if not one.problem:
                    return ask.name, answers
                await asyncio.sleep(AGAIN_S)

        return await asyncio.gather(*(insist(ask) for ask in asks))
