"""Requests sent before the replica may serve, so that no client meets a cold engine.

First prompts of growing length, then short ones until three in a row take the same time within
10 %, or all are sent. An engine that compiles gets a prompt for each prefill bucket (powers of two
up to what one step takes); an eager one, which has nothing to make for each length, the shortest
and the longest.
"""

import random
import time
from collections.abc import Awaitable, Callable, Sequence

Send = Callable[[list[int]], Awaitable[None]]
Progress = Callable[[int, int], None]

AGREEMENT = 0.10
IN_A_ROW = 3
SMALLEST_BUCKET = 16
SLOW_S = 2.0
ANSWER_TOKENS = 2
# Token ids below this exist in any vocabulary; which ones does not matter.
HIGHEST_TOKEN = 100


def prompt_lengths(requests: int, longest: int, *, compiles: bool) -> list[int]:
    """Length of each prompt: every bucket once, shortest first, then the smallest again."""
    top = max(1, longest)
    buckets = [min(SMALLEST_BUCKET, top)]
    while buckets[-1] < top:
        buckets.append(min(buckets[-1] * 2, top) if compiles else top)
    return (buckets + [buckets[0]] * requests)[:requests]


def agree(seconds: Sequence[float]) -> bool:
    """Whether the last three differ by no more than 10 % of the smallest."""
    last = seconds[-IN_A_ROW:]
    return len(last) == IN_A_ROW and max(last) - min(last) <= AGREEMENT * min(last)


def _prompt(length: int, source: random.Random) -> list[int]:
    # Random ids, so that the prefix cache cannot answer instead of the model.
    return [source.randrange(3, HIGHEST_TOKEN) for _ in range(length)]


async def warm_up(
    send: Send, requests: int, longest: int, progress: Progress, *, compiles: bool
) -> int:
    """Sends up to `requests` prompts of at most `longest` tokens; returns how many.

    `progress(done, total)` is called before the first and after each. Once a bucket takes
    longer than two seconds, the larger ones are replaced by short prompts: they would
    take minutes on a small machine and warm nothing that is not warm by then.
    """
    source = random.Random(0)  # noqa: S311  # fixed, so that two starts do the same work
    lengths = prompt_lengths(requests, longest, compiles=compiles)
    short_times: list[float] = []
    limit = longest
    progress(0, len(lengths))
    for done, wanted in enumerate(lengths, 1):
        length = wanted if wanted <= limit else lengths[0]
        started = time.perf_counter()
        await send(_prompt(length, source))
        took = time.perf_counter() - started
        if took > SLOW_S:
            limit = min(limit, length)
        if length == lengths[0] and done > 1:  # the very first one is slower than any other
            short_times.append(took)
        progress(done, len(lengths))
        if agree(short_times):
            return done
    return len(lengths)
