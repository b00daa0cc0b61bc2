"""Takes keys, tokens and passwords out of what is shown: messages, settings, bundles of the doctor.

A secret is told by its name (`api_key: x`, `--hf-token x`) or by its own look (`sk-...`).
"""

import re
from typing import Any

GONE = "***"

_WORD = (
    r"(?:authorization|api[_-]?keys?|(?:access|private|secret)[_-]?key|token|password|passwd"
    r"|passphrase|secret|credentials?|\u5bc6\u7801|\u53e3\u4ee4|\u5bc6\u94a5)"
)
_ASSIGNED = rf"{_WORD}\\?[\"']?\s*[:=\uff1a]\s*\\?"
_LIST = re.compile(rf"({_ASSIGNED}[\[(])[^\])]*", re.IGNORECASE)
_QUOTED = re.compile(rf"({_ASSIGNED}([\"']))((?:(?!\\?\2).){{4,}})", re.IGNORECASE)
_PLAIN = re.compile(
    rf"({_ASSIGNED}[\"']?(?:(?:bearer|basic)\s+)?)([^\s\"',;\\\[(]{{4,}})", re.IGNORECASE
)
# As it was typed (`--api-key x`) and as Python prints a command (`'--api-key', 'x'`).
_OPTION = r"(?<![\w-])--[\w-]{0,40}(?:key|token|password|secret)"
_OPTION_VALUE = re.compile(
    rf"({_OPTION}[\"']?(?:,\s*|[ =]+)[\"']?)([^\s\"',]{{4,}})", re.IGNORECASE
)
_OPTION_ALONE = re.compile(_OPTION, re.IGNORECASE)
_OPTION_WHOLE = re.compile(rf"({_OPTION}=).+", re.IGNORECASE | re.DOTALL)
# A path made of a URL has one slash less.
_URL_PASSWORD = re.compile(r"(:/{1,2}[^\s/:@]*:)[^\s/@]+(?=@)")
_NAME = re.compile(rf"(?:^|[_-]){_WORD}$", re.IGNORECASE)
_BEARER = re.compile(r"(\bbearer\s+)([^\s\"',;]{4,})", re.IGNORECASE)
_LOOK = re.compile(r"\b(?:sk|hf|ghp|xoxb)[-_][A-Za-z0-9_-]{12,}")


def without_secrets(line: str) -> str:
    """`line` with `***` for what its own look, or the name before it, says is secret."""
    for pattern in (_LIST, _QUOTED, _PLAIN, _OPTION_VALUE):
        line = pattern.sub(rf"\1{GONE}", line)
    return without_evident_secrets(line)


def without_evident_secrets(line: str) -> str:
    """As `without_secrets`, for sentences of ours, in which `token: ` may stand before a word."""
    for pattern in (_URL_PASSWORD, _BEARER):
        line = pattern.sub(rf"\1{GONE}", line)
    return _LOOK.sub(GONE, line)


def names_a_secret(key: str) -> bool:
    """Whether what is called so, as `hf_token`, is a secret."""
    return bool(_NAME.search(key))


def is_secret_option(word: object) -> bool:
    """Whether the next word of a command line is a secret, as it is after `--api-key`."""
    return isinstance(word, str) and bool(_OPTION_ALONE.fullmatch(word))


def hidden(value: Any) -> Any:
    """`value`, of strings, numbers, lists and mappings, as it may be shown.

    Lists may be command lines: what follows `--api-key` is its value. What holds itself is cut.
    """
    return _hidden(value, ())


def _hidden(value: Any, within: tuple[int, ...]) -> Any:
    if isinstance(value, str):
        return without_secrets(_OPTION_WHOLE.sub(rf"\1{GONE}", value))
    if not isinstance(value, dict | list | tuple):
        return value
    if id(value) in within:
        return "..."
    within = (*within, id(value))
    if isinstance(value, dict):
        return {
            _hidden(key, within): GONE if names_a_secret(str(key)) else _hidden(item, within)
            for key, item in value.items()
        }
    return [
        GONE if is_secret_option(before) else _hidden(item, within)
        for before, item in zip([None, *value], value, strict=False)
    ]
