"""How many tokens a prompt has at least, without the model's tokenizer.

Ids are counted. Of text only its length is known: it is taken for a token every `BYTES_PER_TOKEN`
bytes of UTF-8. Tokenizers make more of any natural language or code, so a prompt that fits is not
refused. What is too long for the model the engine refuses, with a 400 of its own.
"""

from collections.abc import Iterable
from typing import Any

BYTES_PER_TOKEN = 8
_PROMPTS = ("prompt", "input", "documents")  # one, or a list of several


def least_prompt_tokens(content: dict[str, Any]) -> int:
    """Of the longest prompt in a request to one of the paths that take the model."""
    chat = _bytes(content.get("messages"))
    prompts = (prompt for key in _PROMPTS for prompt in _prompts(content.get(key)))
    return max(map(_tokens, prompts), default=0) + _tokens_of_bytes(chat)


def _prompts(value: Any) -> Iterable[Any]:
    """A list of texts, or of lists of ids, is several prompts."""
    several = isinstance(value, list) and all(isinstance(one, str | list) for one in value)
    return value if several else (value,)


def _tokens(prompt: Any) -> int:
    if isinstance(prompt, list) and prompt and type(prompt[0]) is int:
        return len(prompt)
    return _tokens_of_bytes(_bytes(prompt))


def _tokens_of_bytes(length: int) -> int:
    return -(-length // BYTES_PER_TOKEN)


def _bytes(value: Any) -> int:
    """UTF-8 bytes of a text, of a message, or of a list of messages or of parts of one."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "replace"))
    if isinstance(value, list):
        return sum(map(_bytes, value))
    if isinstance(value, dict):  # not what a template may leave out, nor images and sound
        return _bytes(value.get("content")) + _bytes(value.get("text"))
    return 0
