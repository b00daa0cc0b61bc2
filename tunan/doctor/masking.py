"""Takes out of texts what says whose machine it is: addresses, serials, names, keys.

The same original becomes the same stand-in everywhere, so that what was equal stays equal.
"""

import ipaddress
import re
from collections.abc import Callable
from typing import Any

_IPV4 = re.compile(r"(?<![0-9A-Za-z.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![0-9A-Za-z]|\.[0-9])")
_IPV6 = re.compile(r"(?<![0-9A-Za-z:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![0-9A-Za-z:.])")
_MAC = re.compile(r"(?<![0-9A-Fa-f:])(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}(?![0-9A-Fa-f:])")
_SERIAL = re.compile(
    r"((?:serial[ _-]?(?:number|no)?|[vnd]?die[ _-]?id|uuid)\s*[:=]\s*)([^\n,;]+)",
    re.IGNORECASE,
)
_WORD = (
    r"(?:authorization|api[_-]?keys?|(?:access|private|secret)[_-]?key|token|password|passwd"
    r"|passphrase|secret|credentials?|\u5bc6\u7801|\u53e3\u4ee4|\u5bc6\u94a5)"
)
_ASSIGNED = rf"{_WORD}\\?[\"']?\s*[:=\uff1a]\s*\\?"
_SECRET_LIST = re.compile(rf"({_ASSIGNED}[\[(])[^\])]*", re.IGNORECASE)
_SECRET_QUOTED = re.compile(rf"({_ASSIGNED}([\"']))((?:(?!\\?\2).){{4,}})", re.IGNORECASE)
_SECRET = re.compile(
    rf"({_ASSIGNED}[\"']?(?:(?:bearer|basic)\s+)?)([^\s\"',;\\\[(]{{4,}})", re.IGNORECASE
)
# As it was typed (`--api-key x`) and as Python prints a command (`'--api-key', 'x'`).
_OPTION = r"(?<![\w-])--[\w-]{0,40}(?:key|token|password|secret)"
_SECRET_OPTION = re.compile(
    rf"({_OPTION}[\"']?(?:,\s*|[ =]+)[\"']?)([^\s\"',]{{4,}})", re.IGNORECASE
)
_OPTION_ALONE = re.compile(_OPTION, re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(://[^\s/:@]*:)[^\s/@]+(?=@)")
_SECRET_KEY = re.compile(rf"(?:^|[_-]){_WORD}$", re.IGNORECASE)
_BEARER = re.compile(r"(\bbearer\s+)([^\s\"',;]{4,})", re.IGNORECASE)
_KEY = re.compile(r"(?:^|_)(?:authorization|api_?key|token|password|secret)$", re.IGNORECASE)
_BEARER = re.compile(r"(\bbearer\s+)([^\s\"',;]{4,})", re.IGNORECASE)
_KEY = re.compile(r"\b(?:sk|hf|ghp|xoxb)[-_][A-Za-z0-9_-]{12,}")
_HOME = re.compile(r"(/home/|/Users/)([^/\s:\"']+)")
_VERSION_LINE = re.compile(r"version|compatible", re.IGNORECASE)
GONE = "***"


class Mask:
    """Replaces; remembers what became what. `hostname` is taken out as well."""

    def __init__(self, hostname: str | None = None) -> None:
        self._hostname = hostname if hostname and len(hostname) > 2 else None
        self._names: dict[tuple[str, str], str] = {}

    def text(self, text: str) -> str:
        """`text` without what is private."""
        return "\n".join(self._line(line) for line in text.split("\n"))

    def json(self, value: Any) -> Any:
        """Every string in `value`, keys of mappings included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [
                GONE if _is_option(before) and isinstance(item, str) else self.json(item)
                for before, item in zip([None, *value], value, strict=False)
            ]
        if isinstance(value, dict):
            return {self.text(str(key)): self._item(str(key), item) for key, item in value.items()}
        return value

    def _item(self, key: str, value: Any) -> Any:
        secret = _SECRET_KEY.search(key) and isinstance(value, str | list)
        return GONE if secret else self.json(value)

    def _line(self, line: str) -> str:
        for pattern in (_SECRET_LIST, _SECRET_QUOTED, _SECRET, _SECRET_OPTION, _URL_PASSWORD):
            line = pattern.sub(rf"\1{GONE}", line)
        line = _BEARER.sub(rf"\1{GONE}", line)
        line = _KEY.sub(GONE, line)
        line = _SERIAL.sub(lambda m: m[1] + self._stand_in("serial", m[2].strip()), line)
        line = _MAC.sub(lambda m: self._mac(m[0].lower()), line)
        line = _IPV6.sub(lambda m: self._ip(m[0]), line)
        if not _VERSION_LINE.search(line):  # 23.0.0.1 may be a version
            line = _IPV4.sub(lambda m: self._ip(m[0]), line)
        line = _HOME.sub(lambda m: m[1] + self._stand_in("user", m[2]), line)
        if self._hostname:
            name = re.escape(self._hostname)
            line = re.sub(rf"(?i)(?<![\w-]){name}(?![\w-])", "host-1", line)
        return line

    def _stand_in(self, kind: str, original: str) -> str:
        return self._named(kind, original, lambda number: f"{kind}-{number}")

    def _named(self, kind: str, original: str, name: Callable[[int], str]) -> str:
        if original in {v for (k, _), v in self._names.items() if k == kind}:
            return original  # a stand-in already
        key = (kind, original)
        if key not in self._names:
            self._names[key] = name(1 + sum(k == kind for k, _ in self._names))
        return self._names[key]

    def _mac(self, original: str) -> str:
        return self._named(
            "mac", original, lambda n: f"02:00:00:00:{n >> 8 & 255:02x}:{n & 255:02x}"
        )

    def _ip(self, original: str) -> str:
        try:
            address = ipaddress.ip_address(original)
        except ValueError:
            return original
        netmask = original.startswith("255.")
        if address.is_loopback or address.is_unspecified or netmask:
            return original
        if address.version == 6:
            return self._named("ip6", original, lambda n: f"2001:db8::{n:x}")
        # 198.18.0.0/15 is set aside for tests of networks (RFC 2544).
        return self._named("ip4", original, lambda n: f"198.18.{n >> 8 & 255}.{n & 255}")


def _is_option(value: Any) -> bool:
    return isinstance(value, str) and bool(_OPTION_ALONE.fullmatch(value))
