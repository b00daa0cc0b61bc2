"""Going on with a stream at another replica: the request, and its events as the client's kind.

The continuation is a `/v1/completions` request whose prompt is the ids of the prompt and of
what was generated. What comes back is rewritten: the id, time and model of the first answer,
chat chunks where the client asked for a chat, counts of tokens over the whole answer.
"""

from typing import Any

from tunan.gateway.events import encode
from tunan.gateway.plan import CARRIED, CHAT
from tunan.gateway.sampling import continued_sampling
from tunan.gateway.transcript import Transcript

DEFAULT_COMPLETION_TOKENS = 16  # of the OpenAI API and vLLM


class DivergedError(Exception):
    """The continuation does not repeat what the client already has."""


class Continuation:
    """One continuation of `transcript`; the request it continues is `body` sent to `path`."""

    def __init__(
        self,
        path: str,
        body: dict[str, Any],
        transcript: Transcript,
        sampler: bool,
        show_ids: bool,
    ) -> None:
        self._chat = path == CHAT
        self._body = body
        self._transcript = transcript
        self._sampler = sampler
        self._show_ids = show_ids
        self._kept, kept_characters = transcript.take_up()
        ids = transcript.ids
        self._prompt = [*transcript.prompt_ids, *ids[: self._kept]]
        self._again = ids[self._kept :]  # ids that will come once more
        self._skip = transcript.characters - kept_characters  # characters likewise
        self._offset: int | None = None

    @property
    def prefilled_tokens(self) -> int:
        """Tokens that the other replica has to read again."""
        return len(self._prompt)

    @property
    def remaining(self) -> int | None:
        """Tokens it may generate; None: as many as the model allows."""
        limit = self._limit()
        return None if limit is None else limit - self._kept

    def request(self) -> dict[str, Any]:
        """The body for `/v1/completions`."""
        body = {key: value for key, value in self._body.items() if key in CARRIED}
        body |= continued_sampling(body, len(self._transcript.prompt_ids), self._sampler)
        body |= {
            "prompt": self._prompt,
            "add_special_tokens": False,
            "stream": True,
            "return_token_ids": True,
            "max_tokens": self.remaining,
            "min_tokens": max(0, (self._body.get("min_tokens") or 0) - self._kept),
        }
        if (wanted := self._logprobs()) is not None:
            body["logprobs"] = wanted
        return body

    def rewrite(self, event: dict[str, Any]) -> bytes:
        """The client's event for one of the continuation's; empty if it has all of it.

        Updates the transcript. Raises `DivergedError` if repeated ids or text differ.
        """
        choices = event.get("choices") or []
        content: dict[str, Any] = dict(self._transcript.head)
        if not choices:
            content["choices"] = []
            return self._with_usage(event, content)
        choice = choices[0]
        ids: list[int] = choice.get("token_ids") or []
        text: str = choice.get("text") or ""
        reason = choice.get("finish_reason")
        logprobs = choice.get("logprobs")
        old = min(len(ids), len(self._again))
        if ids[:old] != self._again[:old]:
            raise DivergedError
        clean = len(ids) == 1 and bool(text)
        del self._again[:old]
        ids = ids[old:]
        skipped = min(self._skip, len(text))
        self._skip -= skipped
        text = text[skipped:]
        if reason and (self._again or self._skip):
            raise DivergedError  # it ends before the client's own text does
        if not ids and not text and not reason:
            return b""
        self._transcript.note_list(ids, len(text), clean)
        self._transcript.finished = reason or ""
        content["choices"] = [self._choice(choice, text, ids, _without(logprobs, old))]
        return self._with_usage(event, content)

    def _choice(
        self, choice: dict[str, Any], text: str, ids: list[int], logprobs: dict[str, Any] | None
    ) -> dict[str, Any]:
        reason = choice.get("finish_reason")
        shown = ids if self._show_ids else None
        if not self._chat:
            return {
                "index": 0,
                "text": text,
                "logprobs": self._moved(logprobs),
                "finish_reason": reason,
                "stop_reason": choice.get("stop_reason"),
                "prompt_token_ids": None,
                "token_ids": shown,
            }
        stopped = {"stop_reason": choice.get("stop_reason")} if reason else {}
        return {
            "index": 0,
            "delta": {"content": text},
            "logprobs": self._chat_logprobs(logprobs),
            "finish_reason": reason,
            **stopped,
            "token_ids": shown,
        }

    def _with_usage(self, event: dict[str, Any], content: dict[str, Any]) -> bytes:
        if usage := event.get("usage"):
            prompt = len(self._transcript.prompt_ids)
            generated = usage["completion_tokens"] + self._kept
            content["usage"] = {
                **usage,
                "prompt_tokens": prompt,
                "completion_tokens": generated,
                "total_tokens": prompt + generated,
            }
        return encode(content)

    def _limit(self) -> int | None:
        given = self._body.get("max_completion_tokens") if self._chat else None
        given = self._body.get("max_tokens") if given is None else given
        if given is None and not self._chat and "max_tokens" not in self._body:
            return DEFAULT_COMPLETION_TOKENS
        return given

    def _logprobs(self) -> int | None:
        if self._chat:
            return (self._body.get("top_logprobs") or 0) if self._body.get("logprobs") else None
        given: int | None = self._body.get("logprobs")
        return given

    def _moved(self, logprobs: dict[str, Any] | None) -> dict[str, Any] | None:
        """Text offsets count from the start of the whole answer."""
        if not logprobs or not logprobs["text_offset"]:
            return logprobs
        if self._offset is None:
            self._offset = self._transcript.logprob_offset - logprobs["text_offset"][0]
        offsets = [offset + self._offset for offset in logprobs["text_offset"]]
        self._transcript.logprob_offset = offsets[-1] + len(logprobs["tokens"][-1])
        return {**logprobs, "text_offset": offsets}

    def _chat_logprobs(self, logprobs: dict[str, Any] | None) -> dict[str, Any] | None:
        if logprobs is None:
            return None
        wanted = self._body.get("top_logprobs") or 0
        return {
            "content": [
                {
                    **_entry(token, logprob),
                    "top_logprobs": [_entry(*item) for item in list((top or {}).items())[:wanted]]
                    if wanted >= 0
                    else [_entry(*item) for item in (top or {}).items()],
                }
                for token, logprob, top in zip(
                    logprobs["tokens"],
                    logprobs["token_logprobs"],
                    logprobs["top_logprobs"],
                    strict=True,
                )
            ]
        }


def _entry(token: str, logprob: float | None) -> dict[str, Any]:
    shown = -9999.0 if logprob is None else logprob
    return {"token": token, "logprob": shown, "bytes": list(token.encode("utf-8", "replace"))}


def _without(logprobs: dict[str, Any] | None, entries: int) -> dict[str, Any] | None:
    if logprobs is None or not entries:
        return logprobs
    return {key: value[entries:] for key, value in logprobs.items()}
