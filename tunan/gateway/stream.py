"""A stream of generated tokens that outlives the replicas it runs on."""

import json
from typing import Any

from tunan.gateway.attempt import pass_on
from tunan.gateway.call import Call
from tunan.gateway.continuation import Continuation, DivergedError
from tunan.gateway.delivery import Delivery
from tunan.gateway.events import DONE, TokenEvent, encode, is_done
from tunan.gateway.leg import Leg
from tunan.gateway.lost import Lost
from tunan.gateway.plan import COMPLETION
from tunan.gateway.repeated_stream import RepeatedStream
from tunan.gateway.shape import MISSHAPEN, broken_off_by, head_of, is_noise, of_a_parser, read
from tunan.gateway.transcript import Transcript
from tunan.gateway.upstream import with_request_id


class ResumableStream:
    """One streamed request: the first leg is passed on, the others are rewritten."""

    def __init__(self, call: Call, delivery: Delivery, *, sampler: bool, memory_bytes: int) -> None:
        self._call = call
        self._content = (call.content or {}) | call.plan.additions
        self._delivery = delivery
        self._sampler = sampler
        tail = _stop_tail(self._content.get("stop"))
        held_back = not self._content.get("include_stop_str_in_output")
        self._transcript = Transcript(tail, held_back, memory_bytes)
        # Takes over when it turns out that a parser of the engine makes the events.
        self._parsed = RepeatedStream(call, delivery, memory_bytes=memory_bytes)
        self._early: list[bytes] = []  # events before any text, which it has to know then
        self._is_parsed = False
        self._continuation: Continuation | None = None
        # Events have to be read here, so nobody on the way may compress them.
        self._headers = [(k, v) for k, v in call.headers if k != b"accept-encoding"]
        self.done = False
        self._usage_sent = False
        self._obstacle = ""
        self.resumed = 0
        self.prefilled = 0

    @property
    def may_go_on(self) -> bool:
        """Whether another replica may be asked after a loss."""
        if self._is_parsed:
            return self._parsed.may_go_on
        return not self._delivery.started or not self._unsound

    @property
    def progress(self) -> int:
        """Tokens that have come."""
        return self._transcript.count + self._parsed.progress

    @property
    def used(self) -> int:
        """Tokens of the answer, for the limits of its key."""
        return self.progress

    @property
    def _unsound(self) -> str:
        if self._obstacle:
            return self._obstacle
        if not self._transcript.complete:
            return "it is longer than what is remembered of a stream"
        if not self._transcript.prompt_ids:
            return "the engine does not tell its token ids"
        return ""

    async def run(self, leg: Leg) -> None:
        """One attempt. Raises `Lost`."""
        if self._is_parsed and self._delivery.started:
            self.resumed += 1
            await self._parsed.run(leg)
            self.prefilled = self._parsed.prefilled
            return
        if self._delivery.started:
            await self._resume(leg)
        else:
            self._begin_anew()
            await leg.open("POST", self._call.target, self._headers, self._call.first_body())
        await pass_on(leg, self._delivery, self)

    def _begin_anew(self) -> None:
        self._continuation = None
        self._early.clear()
        self._is_parsed = False

    def forbid(self, why: str) -> None:
        """Nothing may follow what the client has."""
        self._obstacle = why

    async def give_up(self, status: int, kind: str, message: str) -> None:
        """The stream has begun and cannot go on: it says why, and is cut."""
        if self._is_parsed:
            await self._parsed.give_up(status, kind, message)
            return
        why = f"; it could not be resumed: {self._unsound}" if self._unsound else ""
        if head := self._transcript.head:
            await self._delivery.write(broken_off_by(self._call.path, head))
        await self._delivery.error_event(status, kind, message + why)

    async def _resume(self, leg: Leg) -> None:
        self._continuation = Continuation(
            self._call.path, self._content, self._transcript, self._sampler, self._call.shows_ids
        )
        self.resumed += 1
        self.prefilled += self._continuation.prefilled_tokens
        body = json.dumps(self._continuation.request()).encode()
        headers = with_request_id(self._headers, f"-{self.resumed}")
        await leg.open("POST", COMPLETION, headers, body)

    async def ended_already(self) -> bool:
        """Whether only the end is missing: then it is written here, and no replica is needed."""
        if self._is_parsed:
            return await self._parsed.ended_already()
        if not self._transcript.finished:
            return False
        options = self._content.get("stream_options") or {}
        if options.get("include_usage") and not self._usage_sent:
            if self._unsound:  # not every token was counted
                return False
            prompt, generated = len(self._transcript.prompt_ids), self._transcript.count
            usage = {
                "prompt_tokens": prompt,
                "completion_tokens": generated,
                "total_tokens": prompt + generated,
            }
            event = {**self._transcript.head, "choices": [], "usage": usage}
            await self._delivery.write(encode(event))
        await self._delivery.write(DONE + b"\n\n")
        await self._delivery.end()
        return True

    def take(self, event: TokenEvent | bytes) -> bytes:
        """What the client gets of one event. Raises `Lost`."""
        if self._is_parsed:
            out = self._parsed.take(event)
            self.done = self._parsed.done
            return out
        if isinstance(event, TokenEvent):
            if self._continuation is None and self._transcript.head:
                self._note_early(event.raw)
                if self._transcript.complete:
                    self._transcript.note(event.ids, event.characters)
                return event.raw if self._call.shows_ids else event.without_ids
            event = event.raw
        content = read(event)
        if content is None:
            self.done = self.done or is_done(event)
            return DONE + b"\n\n" if is_done(event) else event
        if self._continuation is None and not self._transcript.characters:
            self._note_early(event)
            if of_a_parser(content):
                return self._hand_over()
        return self._answered(content)

    def _answered(self, content: dict[str, Any]) -> bytes:
        try:
            out = (
                self._first_leg(content) if self._continuation is None else self._rewritten(content)
            )
        except MISSHAPEN:
            # Some of it may count as sent already, so nothing can follow it.
            self._obstacle = "an event has not the form that vLLM's have"
            raise Lost("garbage", self._obstacle) from None
        if content.get("usage") and not content.get("choices"):
            self._usage_sent = True
        return out

    def _note_early(self, event: bytes) -> None:
        if not self._transcript.characters:
            self._early.append(event)
        elif self._early:
            self._early.clear()

    def _hand_over(self) -> bytes:
        """What the client gets of the event that was the first of a parser."""
        self._is_parsed = True
        self._parsed.begin_anew()
        for event in self._early[:-1]:  # the client has them
            self._parsed.take(event)
        last = self._early.pop()
        self._early.clear()
        return self._parsed.take(last)

    def _rewritten(self, content: dict[str, Any]) -> bytes:
        assert self._continuation is not None  # noqa: S101
        try:
            return self._continuation.rewrite(content)
        except DivergedError:
            self._obstacle = "the other replica generated other tokens"
            raise Lost("garbage", self._obstacle) from None

    def _first_leg(self, content: dict[str, Any]) -> bytes:
        """An event that is not plain text of some tokens: the first, the last, or a rare one."""
        transcript = self._transcript
        if not transcript.head:
            transcript.head = head_of(content)
        choices = content.get("choices") or []
        choice = choices[0] if choices else {}
        for holder in (content, choice):
            if ids := holder.get("prompt_token_ids"):
                transcript.begin(ids)
                if not self._call.shows_ids:
                    holder["prompt_token_ids"] = None
        if not self._call.shows_ids and is_noise(content):
            transcript.note_list(choice.get("token_ids") or [], 0)
            return b""
        if choice:
            self._note(choice)
            if not self._call.shows_ids and "token_ids" in choice:
                choice["token_ids"] = None
        return encode(content)

    def _note(self, choice: dict[str, Any]) -> None:
        transcript = self._transcript
        delta = choice.get("delta") or {}
        if delta.get("tool_calls"):
            self._obstacle = "it contains tool calls"
        if any(delta.get(key) is not None for key in ("reasoning", "reasoning_content")):
            self._obstacle = "it contains reasoning, which the engine separates"
        text = delta.get("content") or choice.get("text") or ""
        ids = choice.get("token_ids")
        if ids is None and (text or choice.get("finish_reason")):
            transcript.forget()
        transcript.note_list(ids or [], len(text))
        transcript.finished = choice.get("finish_reason") or ""
        logprobs = choice.get("logprobs") or {}
        if logprobs.get("text_offset"):
            transcript.logprob_offset = logprobs["text_offset"][-1] + len(logprobs["tokens"][-1])


def _stop_tail(stop: Any) -> int:
    strings = [stop] if isinstance(stop, str) else stop or []
    return max((len(string) for string in strings), default=1) - 1
