"""The form of vLLM's stream events, as far as the gateway has to know it."""

from typing import Any

from tunan.gateway.events import encode, parse
from tunan.gateway.lost import Lost
from tunan.gateway.plan import CHAT

SERVER_ERROR = 500
# What a look-up in an event of another form raises.
MISSHAPEN = (AttributeError, KeyError, IndexError, TypeError, ValueError, OverflowError)
# An answer that vLLM ends of itself, because it shuts down or fails.
_BROKEN_OFF = ("abort", "error")
_HEAD = ("id", "object", "created", "model")
_OF_PARSERS = ("tool_calls", "reasoning", "reasoning_content")


def read(event: bytes) -> dict[str, Any] | None:
    """The JSON of one event of an answer; None for any other that the client gets as it is.

    Raises `Lost` for an error of the engine, an end before the end, and what is no event.
    """
    content = parse(event)
    if content is None:
        return None
    if "error" in content:
        if _blames_client(content["error"]):
            return None
        raise Lost("error", "the engine reports an error in the stream")
    if _broken_off(content):
        raise Lost("error", "the engine broke the answer off")
    return content


def _blames_client(error: Any) -> bool:
    code = error.get("code") if isinstance(error, dict) else None
    return isinstance(code, int) and code < SERVER_ERROR


def _broken_off(content: dict[str, Any]) -> bool:
    try:
        return any(c.get("finish_reason") in _BROKEN_OFF for c in content.get("choices") or [])
    except MISSHAPEN:
        raise Lost("garbage", "an event that is no event of vLLM's") from None


def head_of(content: dict[str, Any]) -> dict[str, Any]:
    """What all events of one answer have in common."""
    return {key: content[key] for key in _HEAD if key in content}


def is_noise(content: dict[str, Any]) -> bool:
    """vLLM sends this only because ids were asked for: nothing in it is for the client."""
    choices = content.get("choices") or []
    return len(choices) == 1 and (
        choices[0].get("delta") == {}
        and not choices[0].get("finish_reason")
        and not choices[0].get("logprobs")
    )


def broken_off_by(path: str, head: dict[str, Any]) -> bytes:
    """The last event with a choice, of an answer to `path` that cannot go on."""
    nothing: dict[str, Any] = {"delta": {}} if path == CHAT else {"text": ""}
    empty: dict[str, Any] = {"index": 0, **nothing, "finish_reason": "error"}
    return encode({**head, "choices": [empty]})


def of_a_parser(content: dict[str, Any]) -> bool:
    """Whether a parser of the engine made it: reasoning, or a part of a tool call."""
    deltas = [choice.get("delta") for choice in content.get("choices") or []]
    return any(
        isinstance(delta, dict) and delta.get(key) not in (None, [])
        for delta in deltas
        for key in _OF_PARSERS
    )


def without_ids(content: dict[str, Any]) -> dict[str, Any]:
    """As vLLM writes it for a client that did not ask for token ids."""
    hidden = {"token_ids": None, "prompt_token_ids": None}
    choices = [
        {**choice, **{key: None for key in hidden if key in choice}}
        for choice in content.get("choices") or []
    ]
    whole = {key: None for key in hidden if key in content}
    return {**content, **whole, "choices": choices}
