"""API keys: read from a file, kept as SHA-256 digests, compared in constant time."""

import hashlib
import hmac
import re
from pathlib import Path

from tunan.errors import UsageError
from tunan.small_file import read_small

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})", re.IGNORECASE)
SHORTEST_KEY = 16  # characters; a shorter one can be guessed over the network


class ApiKeys:
    """The keys that open the front door; plain keys never stay in memory."""

    def __init__(self, digests: frozenset[bytes]) -> None:
        self._digests = tuple(digests)

    @classmethod
    def read(cls, path: Path) -> "ApiKeys":
        """One key a line, plain or `sha256:HEX`; empty lines and `#` comments are skipped.

        Raises `UsageError` without ever quoting a key.
        """
        try:
            lines = read_small(path, "a file of API keys").decode("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise UsageError(f"{path}: cannot read the API keys: {reason}") from None
        digests = {
            _digest_of(line.strip(), f"{path}:{number}")
            for number, line in enumerate(lines, 1)
            if line.strip() and not line.lstrip().startswith("#")
        }
        if not digests:
            raise UsageError(f"{path}: no API key in it; write one a line")
        return cls(frozenset(digests))

    def open_for(self, authorization: bytes) -> bool:
        """Whether the `Authorization` header value carries one of the keys."""
        return bool(self.name_of(authorization))

    def name_of(self, authorization: bytes) -> str:
        """Eight hexadecimal digits that stand for the key in metrics and logs; empty: no key.

        They are the start of the key's digest, from which nobody gets the key.
        """
        scheme, _, key = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            return ""
        digest = hashlib.sha256(key.strip()).digest()
        # Every key is compared, so that the time does not tell which one came close.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return digest.hex()[:8] if any(matches) else ""


def _digest_of(key: str, place: str) -> bytes:
    if match := _DIGEST.fullmatch(key):
        return bytes.fromhex(match[1])
    if key.startswith("sha256:"):
        raise UsageError(f"{place}: `sha256:` must be followed by 64 hexadecimal digits")
    if len(key) < SHORTEST_KEY:
        raise UsageError(f"{place}: the API key is shorter than {SHORTEST_KEY} characters")
    return hashlib.sha256(key.encode()).digest()
