"""The names of machines that are handed to ssh."""

import re
from collections.abc import Sequence

from tunan.ascend.recipe import is_address
from tunan.errors import UsageError

MOST = 256
# A user, then a name or an address. Never what ssh would take for an option, nor anything that a
# ProxyCommand of the user's ssh settings could hand to a shell.
_HOST = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}@)?[A-Za-z0-9][A-Za-z0-9_.:-]{0,252}")


def parse_hosts(text: str) -> tuple[str, ...]:
    """`host1,user@host2,10.0.0.3`. Raises `UsageError`."""
    return checked([name.strip() for name in text.split(",") if name.strip()], "--nodes")


def checked(names: Sequence[str], origin: str) -> tuple[str, ...]:
    """`names` if each is one that ssh may be given and none is there twice."""
    if not names:
        raise UsageError(f"{origin}: names no machine; give host1,host2")
    if len(names) > MOST:
        raise UsageError(f"{origin}: {len(names)} machines; at most {MOST} are asked at once")
    for name in names:
        if not _HOST.fullmatch(name):
            raise UsageError(f"{origin}: {name[:80]!r} is no name of a machine; give host1,host2")
    if len(set(names)) < len(names):
        raise UsageError(f"{origin}: a machine is named twice; name each once")
    return tuple(names)


def bare(host: str) -> str:
    """Without the user."""
    return host.rpartition("@")[2]


def is_name(host: str) -> bool:
    """Whether `host` has to be looked up, being no address."""
    return not is_address(bare(host))
