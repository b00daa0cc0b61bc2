"""What is said of errors that people posted (posts.toml), and what was said at first."""

import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.diagnosis.accuracy import SEEDS, diagnosed
from tests.diagnosis.noise import Log, posted, quiet_log
from tunan.diagnosis import Diagnosis

_POSTS = Path(__file__).with_name("posts.toml")
_NOTHING_FAILED = "clean"


@dataclass(frozen=True)
class Post:
    """`right`: entries that name the cause; without one `unknown` is what the exception shown must
    contain, or "clean". `at_first`: "right" or "missed", before it was worked on."""

    source: str
    batch: int
    at_first: str
    said: tuple[str, ...]
    process: str = ""
    right: tuple[str, ...] = ()
    unknown: str = ""

    def log(self, seed: int) -> Log:
        """It in generated noise."""
        if self.unknown == _NOTHING_FAILED:
            return Log([*quiet_log(seed).lines, *self.said])
        return posted(self.said, self.process, seed)

    def judged(self, found: Diagnosis) -> str:
        """ "right", "missed" (nothing named that has a name) or "wrong"."""
        if self.right:
            return "right" if found.id in self.right else "wrong" if found.id else "missed"
        if found.id:
            return "wrong"
        if self.unknown == _NOTHING_FAILED:
            return "right" if found.verdict == "clean" else "missed"
        return "right" if found.cause and self.unknown in found.cause.text else "missed"


def posts() -> list[Post]:
    """Every post of the file."""
    content = tomllib.loads(_POSTS.read_text(encoding="utf-8"))["post"]
    return [Post(**{**post, "said": tuple(post["said"])}) for post in content]


def measure_posts(seeds: Sequence[int] = SEEDS) -> dict[str, dict[str, object]]:
    """Of each batch: how many have a cause that can be named, how many of them were at first, and
    how many logs of them are now."""
    return {f"batch {number}": _measured(number, seeds) for number in (1, 2)}


def _measured(batch: int, seeds: Sequence[int]) -> dict[str, object]:
    those = [post for post in posts() if post.batch == batch]
    named = [post for post in those if post.right]
    now = Counter(
        post.judged(diagnosed(post.log(seed))) for post in those for seed in seeds if post.right
    )
    return {
        "posts": len(those),
        "with_a_cause_to_name": len(named),
        "named_at_first": sum(post.at_first == "right" for post in named),
        "named_wrongly_at_first": sum(post.at_first == "wrong" for post in named),
        "logs_now": len(named) * len(seeds),
        "named_now": now["right"],
        "named_wrongly_now": now["wrong"],
    }
