"""What one API key may ask for: requests and tokens a minute, requests at once."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tunan.config.deployment import Gateway


class OverLimitError(Exception):
    """The key has used up what it may; `wait_s` is when to ask again."""

    def __init__(self, what: str, wait_s: float) -> None:
        super().__init__(what)
        self.wait_s = wait_s


@dataclass
class _Bucket:
    """A token bucket: `per_minute` flow in, as many fit. It may be overdrawn once."""

    per_minute: int
    level: float
    at: float

    def wait_s(self, now: float) -> float:
        """Seconds until there is one in it; 0: there is."""
        per_second = self.per_minute / 60
        self.level = min(self.per_minute, self.level + (now - self.at) * per_second)
        self.at = now
        return 0.0 if self.level >= 1 else (1 - self.level) / per_second


class Limits:
    """Counts what each key uses. `clock` gives seconds that only go up."""

    def __init__(self, settings: Gateway, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._running: dict[str, int] = {}
        self._requests: dict[str, _Bucket] = {}
        self._tokens: dict[str, _Bucket] = {}

    @contextlib.contextmanager
    def request(self, key: str) -> Iterator[None]:
        """One request of `key`, while the block runs. Raises `OverLimitError`."""
        settings, now = self._settings, self._clock()
        at_once = settings.requests_at_once
        if at_once is not None and self._running.get(key, 0) >= at_once:
            raise OverLimitError(f"more than {at_once} requests of this key at once", 1)
        tokens = self._bucket(self._tokens, key, settings.tokens_per_minute, now)
        if tokens and (wait := tokens.wait_s(now)):
            raise OverLimitError(f"more than {tokens.per_minute} tokens a minute", wait)
        requests = self._bucket(self._requests, key, settings.requests_per_minute, now)
        if requests:
            if wait := requests.wait_s(now):
                raise OverLimitError(f"more than {requests.per_minute} requests a minute", wait)
            requests.level -= 1
        self._running[key] = self._running.get(key, 0) + 1
        try:
            yield
        finally:
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]

    def used(self, key: str, tokens: int) -> None:
        """`tokens` were worked off for `key`."""
        per_minute = self._settings.tokens_per_minute
        if bucket := self._bucket(self._tokens, key, per_minute, self._clock()):
            bucket.level -= tokens

    def _bucket(
        self, buckets: dict[str, _Bucket], key: str, per_minute: int | None, now: float
    ) -> _Bucket | None:
        if per_minute is None:
            return None
        if key not in buckets:
            buckets[key] = _Bucket(per_minute, per_minute, now)
        return buckets[key]
