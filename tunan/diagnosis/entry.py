"""What is known of one error: the schema of the files in `entries`."""

import re
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Language = Literal["en", "zh"]
Kind = Literal["cause", "general", "vague", "consequence", "messenger", "notice"]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
Word = Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
AclCode = Annotated[int, Field(ge=100_000, le=999_999)]
CannCode = Annotated[str, Field(pattern=r"^E[A-Z0-9]\d{4}$")]


def _compiled(value: object) -> object:
    return re.compile(value) if isinstance(value, str) else value


Pattern = Annotated[re.Pattern[str], BeforeValidator(_compiled)]


class Fact(BaseModel):
    """Strict and frozen: a data file with a wrong key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class Text(Fact):
    """The same in English and in Chinese."""

    en: str = Field(min_length=1)
    zh: str = Field(min_length=1)

    def of(self, language: Language) -> str:
        """It in one language."""
        return self.en if language == "en" else self.zh


class Entry(Fact):
    """One error.

    `kind`: a `cause`; `general`, which a cause in the same log explains better, and `vague`, which
    says hardly more than that something failed; a `consequence` of another rank's failure; a
    `messenger` that only repeats; a `notice` that stops nothing.
    A line is the error's if a pattern is found in it, or one of the codes. `words`: every line that
    a pattern matches has at least one of them, in lower case, between characters that are neither
    letters, digits nor `_`; without words the patterns are tried on every line that is looked at.
    `any_level`: also on lines logged as INFO or WARNING. `versions`: those whose sources were seen
    to print it so.
    """

    id: Name
    component: str = Field(min_length=1)
    kind: Kind
    any_level: bool = False
    words: tuple[Word, ...] = ()
    patterns: tuple[Pattern, ...] = ()
    acl_codes: tuple[AclCode, ...] = ()
    cann_codes: tuple[CannCode, ...] = ()
    versions: tuple[str, ...] = ()
    source: str = Field(min_length=1)
    examples: tuple[str, ...] = Field(min_length=1)
    cause: Text
    fix: Text

    @model_validator(mode="after")
    def _can_be_found(self) -> "Entry":
        if not (self.patterns or self.acl_codes or self.cann_codes):
            raise ValueError("has neither patterns nor codes")
        return self
