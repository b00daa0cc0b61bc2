"""Numbers out of tools' texts: what is no number, or stands for "unknown", is None."""

import re

_WHOLE = re.compile(r"-?[0-9]{1,15}")
_DECIMAL = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,9})?")


def whole(text: str) -> int | None:
    """`text` as an integer; None for `NA`, `-`, and for -1, which drivers print for "unknown"."""
    text = text.strip()
    number = int(text) if _WHOLE.fullmatch(text) else None
    return None if number is None or number < 0 else number


def decimal(text: str) -> float | None:
    """`text` as a number that may have a fraction; None as in `whole`."""
    text = text.strip()
    number = float(text) if _DECIMAL.fullmatch(text) else None
    return None if number is None or number < 0 else number


def temperature(text: str) -> float | None:
    """Degrees, which may be below zero; None for what is no number."""
    text = text.strip()
    return float(text) if _DECIMAL.fullmatch(text) else None
