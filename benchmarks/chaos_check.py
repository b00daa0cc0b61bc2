"""Holds what the clients of a chaos scenario got against an undisturbed run."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.chaos_streams import Received


@dataclass(frozen=True)
class Difference:
    """Tokens of one answer against the expected ones."""

    lost: int = 0
    duplicated: int = 0
    changed: int = 0


def compare(expected: Sequence[int], found: Sequence[int]) -> Difference:
    """Where `found` departs from `expected`: a piece left out or given twice, or other tokens.

    What follows the first departure is lost if it is found further on in `expected`, duplicated
    if further back; if neither, all from there on counts as changed.
    """
    expected, found = list(expected), list(found)
    same = next(
        (i for i, pair in enumerate(zip(expected, found, strict=False)) if pair[0] != pair[1]),
        min(len(expected), len(found)),
    )
    rest = found[same:]
    if not rest:
        return Difference(lost=len(expected) - same)
    if same == len(expected):
        return Difference(duplicated=len(rest))
    shift = _shift(expected, same, rest)
    if shift is None:
        changed = sum(a != b for a, b in zip(expected[same:], rest, strict=False))
        return Difference(lost=max(0, len(expected) - len(found)), changed=changed)
    if shift > 0:
        return Difference(lost=shift + max(0, len(expected) - same - shift - len(rest)))
    return Difference(duplicated=-shift)


def _shift(expected: list[int], same: int, rest: list[int]) -> int | None:
    """The smallest shift by which `rest` lies in `expected`, as far as both go; None if none.

    A few equal tokens are chance, so at least eight have to agree, or all that there are.
    """
    for size in range(1, len(expected)):
        for shift in (size, -size):
            start = same + shift
            if not 0 <= start < len(expected):
                continue
            overlap = min(len(expected) - start, len(rest))
            enough = overlap >= min(8, len(rest))
            if enough and expected[start : start + overlap] == rest[:overlap]:
                return shift
    return None


def judged(
    expected: Mapping[str, Received], answers: Sequence[tuple[str, Received]]
) -> dict[str, Any]:
    """Counts over all answers of a scenario, and their stalls in seconds."""
    differences = [compare(expected[name].ids, one.ids) for name, one in answers]
    gaps = sorted(one.longest_gap_s for _, one in answers)
    whole = [(name, one) for name, one in answers if not one.problem]
    return {
        "requests": len(answers),
        "requests_lost": len(answers) - len(whole),
        "tokens": sum(len(one.ids) for _, one in answers),
        "tokens_lost": sum(d.lost for d in differences),
        "tokens_duplicated": sum(d.duplicated for d in differences),
        "tokens_changed": sum(d.changed for d in differences),
        "texts_changed": sum(one.text != expected[name].text for name, one in whole),
        "usage_wrong": sum(one.usage != len(one.ids) for _, one in whole),
        "stall_p50_s": round(quantile(gaps, 0.5), 3),
        "stall_p99_s": round(quantile(gaps, 0.99), 3),
        "problems": sorted({f"{name}: {one.problem}" for name, one in answers if one.problem}),
    }


def taken_over(
    expected: Mapping[str, Received], clients: Sequence[tuple[str, list[Received]]], killed: float
) -> dict[str, Any]:
    """As `judged`, where a gateway was killed (time.perf_counter) and its clients asked again.

    An answer that broke is lost. The tokens compared are those of the whole answers; a stall
    lasts from the last token of a broken answer to the first of the next. `back_s` is the time
    from the kill to the first token of a request that was sent after it.
    """
    cut = [(name, one) for name, answers in clients for one in answers[:-1]]
    whole = [(name, answers[-1]) for name, answers in clients]
    gaps = sorted(max(_gaps(answers), default=0.0) for _, answers in clients)
    again = [one.times[0] - killed for _, one in whole if one.began > killed]
    return judged(expected, whole) | {
        "requests": len(whole) + len(cut),
        "requests_lost": len(cut),
        "stall_p50_s": round(quantile(gaps, 0.5), 3),
        "stall_p99_s": round(quantile(gaps, 0.99), 3),
        "problems": sorted({f"{name}: {one.problem}" for name, one in cut}),
        "hit": sum(one.began < killed < one.ended for _, one in (*cut, *whole)),
        "back_s": round(min(again, default=0.0), 2),
    }


def _gaps(answers: Sequence[Received]) -> list[float]:
    between = [later.times[0] - sooner.times[-1] for sooner, later in itertools.pairwise(answers)]
    return [*between, *(one.longest_gap_s for one in answers)]


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that `share` of them do not exceed; 0 of none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def broken(found: Mapping[str, Any], most: Mapping[str, float]) -> list[str]:
    """Each check that does not hold: `stall_p99_s 1.7 > 1.0`."""
    return [f"{key} {found[key]} > {limit}" for key, limit in most.items() if found[key] > limit]
