"""Takes out of texts what says whose machine it is: addresses, serials, names, keys.

The same original becomes the same stand-in everywhere, so that what was equal stays equal.
"""

import ipaddress
import re
from collections.abc import Callable, Sequence
from typing import Any

from tunan.confidential import GONE, is_secret_option, names_a_secret, without_secrets

_IPV4 = re.compile(r"(?<![0-9A-Za-z.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![0-9A-Za-z]|\.[0-9])")
_IPV6 = re.compile(r"(?<![0-9A-Za-z:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![0-9A-Za-z:.])")
_MAC = re.compile(r"(?<![0-9A-Fa-f:])(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}(?![0-9A-Fa-f:])")
_SERIAL = re.compile(
    r"((?:serial[ _-]?(?:number|num|no)?|\bS/?N|[vnd]?die[ _-]?id|uuid)\"?\s*[:=]\s*\"?)"
    r"([^\n,;\"]+)",
    re.IGNORECASE,
)
_HOME = re.compile(r"(/home/|/Users/)([^/\s:\"']+)")
_VERSION_LINE = re.compile(r"version|compatible", re.IGNORECASE)


class Mask:
    """Replaces; remembers what became what. `hostnames` are taken out as well."""

    def __init__(self, *hostnames: str | None) -> None:
        self._hosts = _of_hosts(hostnames)
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
                GONE if is_secret_option(before) and isinstance(item, str) else self.json(item)
                for before, item in zip([None, *value], value, strict=False)
            ]
        if isinstance(value, dict):
            return {self.text(str(key)): self._item(str(key), item) for key, item in value.items()}
        return value

    def _item(self, key: str, value: Any) -> Any:
        secret = names_a_secret(key) and isinstance(value, str | list)
        return GONE if secret else self.json(value)

    def _line(self, line: str) -> str:
        line = without_secrets(line)
        line = _SERIAL.sub(lambda m: m[1] + self._stand_in("serial", m[2].strip()), line)
        line = _MAC.sub(lambda m: self._mac(m[0].lower()), line)
        line = _IPV6.sub(lambda m: self._ip(m[0]), line)
        if not _VERSION_LINE.search(line):  # 23.0.0.1 may be a version
            line = _IPV4.sub(lambda m: self._ip(m[0]), line)
        line = _HOME.sub(lambda m: m[1] + self._stand_in("user", m[2]), line)
        for name, stand_in in self._hosts:
            line = name.sub(stand_in, line)
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


def _of_hosts(names: Sequence[str | None]) -> list[tuple[re.Pattern[str], str]]:
    """Each name, longest first, with what it becomes; one of a letter or two would be anything."""
    telling = [name for name in dict.fromkeys(names) if name and len(name) > 2]
    numbered = [(name, f"host-{number}") for number, name in enumerate(telling, 1)]
    return [
        (re.compile(rf"(?i)(?<![\w-]){re.escape(name)}(?![\w-])"), stand_in)
        for name, stand_in in sorted(numbered, key=lambda pair: -len(pair[0]))
    ]
