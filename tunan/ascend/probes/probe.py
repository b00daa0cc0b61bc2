"""The result of every probe: a value or why there is none, and who said so."""

from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True)
class Probe(Generic[Value]):
    """`value` is None exactly where `error` says in one line why; `source` is who was asked."""

    value: Value | None
    source: str
    error: str | None = None

    @classmethod
    def failed(cls, source: str, error: str) -> "Probe[Value]":
        """Nothing was found out; `error` is one line."""
        return cls(None, source, " ".join(error.split()) or "it said nothing")
