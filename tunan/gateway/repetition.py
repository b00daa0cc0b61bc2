"""An answer that another replica makes anew: the client gets only what it does not have.

Where the engine's parsers made the events (tool calls, reasoning), or a grammar or an echo is
part of the answer, no continuation from token ids makes the same ones. The same request does, asked
again whole: a greedy answer, and one of Tunan's sampler with its seed, comes out the same. What
comes is held against what the client has, so that nothing else is ever sent behind it.
"""

from typing import Any

from tunan.gateway.continuation import DivergedError
from tunan.gateway.shape import head_of

# One part of an answer whose pieces, put together, are a function of its tokens alone.
Channel = tuple[int | str, ...]
# Texts of a `delta`; `role` is one that comes whole.
_TEXTS = frozenset(["role", "content", "reasoning", "reasoning_content", "refusal"])
_NOTHING: tuple[Any, ...] = (None, "", [], {})


class Repetition:
    """What the client has of one answer, by channel, and how far a replica has repeated it.

    `limit_bytes` bounds what is remembered; beyond it `complete` is False.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.head: dict[str, Any] = {}
        self.complete = True
        self.finished: set[int] = set()  # choices whose `finish_reason` the client has
        self.usage_sent = False
        self._limit = limit_bytes
        self._size = 0
        self._had: dict[Channel, Any] = {}  # text or list, when the replica of now began
        self._added: dict[Channel, list[Any]] = {}  # pieces since
        self._ids: set[Channel] = set()  # tool calls whose id the client has
        self._passed: dict[Channel, int] = {}  # of `_had`, repeated by now

    def begin(self) -> None:
        """Another replica starts from the beginning."""
        for channel, pieces in self._added.items():
            had = self._had.get(channel, pieces[0][:0])
            for piece in pieces:
                had = had + piece
            self._had[channel] = had
        self._added.clear()
        self._passed.clear()

    @property
    def _repeating(self) -> bool:
        return any(self._passed.get(channel, 0) < len(had) for channel, had in self._had.items())

    def take(self, content: dict[str, Any]) -> dict[str, Any] | None:
        """What the client gets of one event; None if it has all of it.

        Raises `DivergedError` if it does not repeat what the client has, and the errors of
        Python's look-ups for what has not the form of vLLM's events.
        """
        if not self.head:
            self.head = head_of(content)
        choices = content.get("choices") or []
        if not choices:
            return self._without_choices(content)
        left = [new for choice in choices if (new := self._choice(choice)) is not None]
        return {**content, **self.head, "choices": left} if left else None

    def _without_choices(self, content: dict[str, Any]) -> dict[str, Any] | None:
        if content.get("usage"):
            if self.usage_sent:
                return None
            self.usage_sent = True
        return {**content, **self.head}

    def _choice(self, choice: dict[str, Any]) -> dict[str, Any] | None:
        index: int = choice["index"]
        again = self._repeating
        new = dict(choice)
        if "delta" in choice:
            new["delta"] = self._delta(index, choice["delta"])
        elif choice.get("text"):
            new["text"] = self._rest((index, "text"), choice["text"])
        if logprobs := choice.get("logprobs"):
            new["logprobs"] = {
                key: self._rest((index, "logprobs", key), value, alike=False) if value else value
                for key, value in logprobs.items()
            }
        if ids := choice.get("token_ids"):
            new["token_ids"] = self._rest((index, "token_ids"), ids)
        reason = choice.get("finish_reason")
        says = _says_something(new)
        if (reason or says) and self._repeating:
            raise DivergedError  # something else comes, or the end, before all that the client has
        if reason and index in self.finished:
            return None
        if reason:
            self.finished.add(index)
        return new if reason or says or not again else None

    def _delta(self, index: int, delta: dict[str, Any]) -> dict[str, Any]:
        new: dict[str, Any] = {}
        for key, value in delta.items():
            if value in _NOTHING:
                new[key] = value
            elif key == "tool_calls":
                calls = [call for one in value if (call := self._tool_call(index, one))]
                new |= {key: calls} if calls else {}
            elif key not in _TEXTS:
                raise ValueError(key)
            elif rest := self._rest((index, key), value):
                new[key] = rest
        return new

    def _tool_call(self, index: int, call: dict[str, Any]) -> dict[str, Any] | None:
        """Its id is made up anew each time, so the client keeps the one that it has."""
        channel: Channel = (index, "tool_calls", call["index"])
        new: dict[str, Any] = {}
        if call.get("id") and channel not in self._ids:
            self._ids.add(channel)
            new["id"] = call["id"]
        if call.get("type") and (kind := self._rest((*channel, "type"), call["type"])):
            new["type"] = kind
        function = {
            key: rest
            for key, value in (call.get("function") or {}).items()
            if value and (rest := self._rest((*channel, key), value))
        }
        if function:
            new["function"] = function
        return {"index": call["index"], **new} if new else None

    def _rest(self, channel: Channel, piece: Any, alike: bool = True) -> Any:
        """What of `piece` the client does not have. `alike`: the rest has to be equal."""
        had = self._had.get(channel, "")
        passed = self._passed.get(channel, 0)
        known = min(len(piece), len(had) - passed)
        if alike and known and had[passed : passed + known] != piece[:known]:
            raise DivergedError
        self._passed[channel] = passed + known
        if new := piece[known:]:
            self._remember(channel, new)
        return new

    def _remember(self, channel: Channel, new: Any) -> None:
        if not self.complete:
            return
        # Entries of logprobs are counted, never read again.
        self._added.setdefault(channel, []).append(new)
        self._size += len(new) if isinstance(new, str) else 8 * len(new)
        if self._size > self._limit:
            self.complete = False
            self._had.clear()
            self._added.clear()


def _says_something(choice: dict[str, Any]) -> bool:
    """Whether anything in it is for the client, beyond its place."""
    delta = choice.get("delta") or {}
    logprobs = choice.get("logprobs") or {}
    return bool(
        any(value not in _NOTHING for value in delta.values())
        or choice.get("text")
        or choice.get("token_ids")
        or any(logprobs.values())
    )
