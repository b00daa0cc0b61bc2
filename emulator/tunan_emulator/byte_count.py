"""Numbers of bytes as people write them: `4G`, `0.5G`, `268435456`."""

import re

PATTERN = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMG]?)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_bytes(text: str) -> int | None:
    """Whole bytes, as the libraries read it; None for what is no number of bytes."""
    match = PATTERN.fullmatch(text)
    return int(float(match[1]) * _UNITS[match[2]]) if match and len(match[1]) < 32 else None
