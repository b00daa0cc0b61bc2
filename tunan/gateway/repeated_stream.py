"""A stream that another replica repeats from its start, where it cannot go on in the middle."""

from typing import Any

from tunan.gateway.attempt import pass_on
from tunan.gateway.call import Call
from tunan.gateway.continuation import DivergedError
from tunan.gateway.delivery import Delivery
from tunan.gateway.events import DONE, TokenEvent, encode, is_done
from tunan.gateway.leg import Leg
from tunan.gateway.lost import Lost
from tunan.gateway.repetition import Repetition
from tunan.gateway.shape import MISSHAPEN, broken_off_by, is_noise, read, without_ids
from tunan.gateway.upstream import with_request_id


class RepeatedStream:
    """One streamed request: the first leg is passed on, of the others what the client lacks."""

    def __init__(self, call: Call, delivery: Delivery, *, memory_bytes: int) -> None:
        self._call = call
        self._delivery = delivery
        self._memory = memory_bytes
        self._repetition = Repetition(memory_bytes)
        self._headers = [(k, v) for k, v in call.headers if k != b"accept-encoding"]
        self._hides_ids = "return_token_ids" in call.plan.additions and not call.shows_ids
        self._obstacle = ""
        self.done = False
        self.progress = 0  # events of the answer that the client did not have
        self.resumed = 0
        self.prefilled = 0

    @property
    def may_go_on(self) -> bool:
        """Whether another replica may be asked after a loss."""
        return not self._delivery.started or not self._unsound

    @property
    def used(self) -> int:
        """Tokens of the answer, about, for the limits of its key."""
        return self.progress

    @property
    def _unsound(self) -> str:
        if self._obstacle or self._repetition.complete:
            return self._obstacle
        return "it is longer than what is remembered of a stream"

    async def run(self, leg: Leg) -> None:
        """One attempt. Raises `Lost`."""
        headers = self._headers
        if self._delivery.started:
            self.resumed += 1
            self.prefilled += self._call.prompt_tokens
            self._repetition.begin()
            headers = with_request_id(headers, f"-{self.resumed}")
        else:
            self.begin_anew()
        await leg.open("POST", self._call.target, headers, self._call.first_body())
        await pass_on(leg, self._delivery, self)

    def begin_anew(self) -> None:
        """The client has nothing of it."""
        self._repetition, self._obstacle = Repetition(self._memory), ""

    def forbid(self, why: str) -> None:
        """Nothing may follow what the client has."""
        self._obstacle = why

    async def give_up(self, status: int, kind: str, message: str) -> None:
        """The stream has begun and cannot go on: it says why, and is cut."""
        why = f"; it could not be resumed: {self._unsound}" if self._unsound else ""
        if head := self._repetition.head:
            await self._delivery.write(broken_off_by(self._call.path, head))
        await self._delivery.error_event(status, kind, message + why)

    async def ended_already(self) -> bool:
        """Whether only the end is missing: then it is written here, and no replica is needed."""
        options = (self._call.content or {}).get("stream_options")
        wants_usage = isinstance(options, dict) and options.get("include_usage")
        repetition = self._repetition
        if not repetition.finished or (wants_usage and not repetition.usage_sent):
            return False
        await self._delivery.write(DONE + b"\n\n")
        await self._delivery.end()
        return True

    def take(self, event: TokenEvent | bytes) -> bytes:
        """What the client gets of one event. Raises `Lost`."""
        raw = event.raw if isinstance(event, TokenEvent) else event
        content = read(raw)
        if content is None:
            self.done = self.done or is_done(raw)
            return DONE + b"\n\n" if is_done(raw) else raw
        if self._hides_ids:
            if is_noise(content):
                return b""
            content = without_ids(content)
            raw = encode(content)
        return self._repeated(content) if self.resumed else self._noted(content, raw)

    def _noted(self, content: dict[str, Any], raw: bytes) -> bytes:
        """The first replica's: it is the client's as it is, whether it can be repeated or not."""
        self.progress += 1
        if not self._obstacle:
            try:
                self._repetition.take(content)
            except (*MISSHAPEN, DivergedError):
                self._obstacle = "an event has not the form that vLLM's have"
        return raw

    def _repeated(self, content: dict[str, Any]) -> bytes:
        try:
            new = self._repetition.take(content)
        except MISSHAPEN:
            self._obstacle = "an event has not the form that vLLM's have"
            raise Lost("garbage", self._obstacle) from None
        except DivergedError:
            self._obstacle = "the other replica made another answer"
            raise Lost("garbage", self._obstacle) from None
        if new is None:
            return b""
        self.progress += 1
        return encode(new)
