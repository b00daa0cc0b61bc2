"""What ACL's six-digit statuses and CANN's error codes (E, module, four digits) stand for."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tunan.diagnosis.entry import Text

_HERE = Path(__file__).parent
# A number is a status only where the words before it say so.
ACL_STATUS = re.compile(
    r"(?i:code|ret|status|failed|error|result)\W{0,4}(?:is\W{0,2})?(?P<code>[1-5]\d{5})(?!\d)"
)
CANN_CODE = re.compile(r"(?<![A-Za-z0-9])(?P<code>E[A-Z0-9]\d{4})(?![A-Za-z0-9])")


@dataclass(frozen=True)
class Code:
    """A code found in a log, with what it stands for."""

    code: str
    meaning: Text


@cache
def _acl() -> Mapping[str, Text]:
    data = tomllib.loads((_HERE / "acl_codes.toml").read_text(encoding="utf-8"))
    return {code: Text(**text) for code, text in data.items()}


@cache
def _cann() -> tuple[Mapping[str, Text], Mapping[str, Text]]:
    """The modules by their letter, and the codes."""
    data = tomllib.loads((_HERE / "cann_codes.toml").read_text(encoding="utf-8"))
    modules = {letter: Text(**text) for letter, text in data["modules"].items()}
    return modules, {code: Text(**text) for code, text in data["codes"].items()}


def known_codes() -> frozenset[str]:
    """All that are in the tables."""
    return frozenset((*_acl(), *_cann()[1]))


def decode(code: str) -> Code | None:
    """What a code stands for; of a CANN code that is not listed, at least whose it is."""
    if code.isdecimal():
        meaning = _acl().get(code)
        return Code(code, meaning) if meaning else None
    modules, codes = _cann()
    if code in codes:
        return Code(code, codes[code])
    module = modules.get(code[1:2])
    if module is None:
        return None
    inner = code[2:] >= "9000"
    return Code(
        code,
        Text(
            en=f"{'an inner error' if inner else 'an error'} of: {module.en}",
            zh=f"{module.zh}的{'内部错误' if inner else '错误'}",
        ),
    )


def codes_in(text: str) -> Iterator[str]:
    """The codes that a line names, in order of kind."""
    for pattern in (ACL_STATUS, CANN_CODE):
        for match in pattern.finditer(text):
            yield match["code"]
