"""One request as the gateway sees it: what it passes on, and what it has read of it."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from tunan.gateway.plan import CHAT, COMPLETION, Plan, plan_resume
from tunan.gateway.prompt_size import least_prompt_tokens
from tunan.gateway.responses import Headers, Scope
from tunan.gateway.upstream import request_headers

GENERATION = (CHAT, COMPLETION)
# Repeating these changes nothing, so another replica may be asked after a loss.
REPEATABLE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# What is sent there costs tokens.
MODEL_PATHS = frozenset(
    [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/embeddings",
        "/v1/score",
        "/v1/rerank",
        "/rerank",
        "/score",
        "/pooling",
        "/classify",
    ]
)
REPEATABLE_PATHS = MODEL_PATHS | {"/tokenize", "/detokenize"}
BYTES_PER_TOKEN = 4  # of a prompt, roughly: only used to compare replicas
UNLIMITED_ANSWER_TOKENS = 512  # what an answer without `max_tokens` is taken to cost


class BadRequestError(Exception):
    """The body is not what the path takes; the text says why."""


@dataclass
class Call:
    """`body` is as it came; `content` is its JSON object on the generation paths."""

    method: str
    path: str
    target: str
    headers: Headers
    body: bytes
    content: dict[str, Any] | None = None
    plan: Plan = field(default=Plan({}, "not a generation request"))
    prompt_tokens: int = 0  # about
    tokens: int = 0  # with those of the answer, at most
    prefix_key: bytes = b""

    @property
    def stream(self) -> bool:
        """Whether a stream of events is asked for."""
        return self.content is not None and self.content.get("stream") is True

    @property
    def steady(self) -> bool:
        """Whether each token is an event at once; a parser of tool calls may keep some back."""
        return self.stream and not (self.content or {}).get("tools")

    @property
    def repeatable(self) -> bool:
        """Whether another replica may be asked after a loss, as long as nothing was sent."""
        return self.method in REPEATABLE_METHODS or self.path in REPEATABLE_PATHS

    @property
    def shows_ids(self) -> bool:
        """Whether the client itself asked for token ids."""
        return bool(self.content and self.content.get("return_token_ids"))

    def first_body(self) -> bytes:
        """What the first replica gets: the client's bytes, unless resuming needs more."""
        if self.content is None or not self.plan.additions:
            return self.body
        return with_additions(self.body, self.plan.additions)


def read_call(
    scope: Scope,
    body: bytes,
    *,
    request_id: str,
    resume: bool,
    sampler: bool,
    prefix_kib: float,
    max_prompt_tokens: int | None,
) -> Call:
    """The request of `scope` with its whole `body`. Raises `BadRequestError`."""
    target = scope["raw_path"].decode("ascii")
    if not target.startswith("/"):  # it is put behind a replica's address
        raise BadRequestError("the request's target is not a path")
    if query := scope["query_string"].decode("ascii"):
        target += f"?{query}"
    call = Call(scope["method"], scope["path"], target, request_headers(scope, request_id), body)
    if call.method != "POST" or call.path not in MODEL_PATHS:
        return call
    call.tokens = call.prompt_tokens = len(body) // BYTES_PER_TOKEN + 1
    if call.path not in GENERATION:
        if max_prompt_tokens is not None:
            _refuse_long_prompt(_json_object(body), max_prompt_tokens)
        return call
    content = _json_object(body)
    if max_prompt_tokens is not None:
        _refuse_long_prompt(content, max_prompt_tokens)
    call.content = content
    prompt = content.get("prompt", content.get("messages"))
    call.prompt_tokens = _prompt_tokens(prompt, body)
    call.tokens = call.prompt_tokens + _answer_tokens(content)
    if prefix_kib:
        call.prefix_key = _prefix_key(prompt, int(prefix_kib * 1024))
    if not resume:
        call.plan = Plan({}, "resuming is switched off")
    elif call.stream:
        call.plan = plan_resume(call.path, content, sampler)
    return call


def _refuse_long_prompt(content: dict[str, Any], limit: int) -> None:
    tokens = least_prompt_tokens(content)
    if tokens > limit:
        raise BadRequestError(
            f"the prompt has at least {tokens} tokens; this server takes {limit} at most"
        )


def with_additions(body: bytes, additions: dict[str, Any]) -> bytes:
    """The JSON object `body` with `additions`, without writing all of it anew.

    Of a key that is then there twice the last counts, for Python's parser as for most.
    """
    start = body.rstrip()[:-1].rstrip()
    comma = b"" if start.endswith(b"{") else b","
    return start + comma + json.dumps(additions).encode()[1:]


def _no_number(name: str) -> None:
    """Python's parser takes NaN and Infinity, which are not JSON."""
    raise ValueError(name)


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body.decode("utf-8"), parse_constant=_no_number)
    except UnicodeDecodeError:
        raise BadRequestError("the body is not UTF-8") from None
    except RecursionError:
        raise BadRequestError("the body's JSON is nested too deeply") from None
    except ValueError:
        raise BadRequestError("the body is not JSON") from None
    if not isinstance(content, dict):
        raise BadRequestError("the body is not a JSON object")
    return content


def _prompt_tokens(prompt: Any, body: bytes) -> int:
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return len(prompt)
    return len(body) // BYTES_PER_TOKEN


def _answer_tokens(content: dict[str, Any]) -> int:
    for key in ("max_completion_tokens", "max_tokens"):
        given = content.get(key)
        if isinstance(given, int) and 0 < given < (1 << 24):
            return given
    return UNLIMITED_ANSWER_TOKENS


def _prefix_key(prompt: Any, length: int) -> bytes:
    if isinstance(prompt, str):
        start = prompt[:length]
    elif isinstance(prompt, list):
        start = ""
        for part in prompt:
            start += str(part)
            if len(start) >= length:
                break
        start = start[:length]
    else:
        return b""
    return hashlib.blake2b(start.encode("utf-8", "replace"), digest_size=16).digest()
