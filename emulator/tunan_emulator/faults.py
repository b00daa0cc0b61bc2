"""The grammar of faults: `TUNAN_EMULATE_FAULTS="kind:key=value,key=value;kind:..."`.

| kind | keys | what happens |
|---|---|---|
| oom | bytes, after? | allocations fail once the device would hold more bytes than that |
| missing | op | libopapi.so lacks the operator |
| exception | op | the operator ends in an AI Core exception |
| hccl-timeout | after? | after so many collectives the next never complete |
| hccl-buffer | op, mb | the operator refuses an HCCL_BUFFSIZE below that |
| graph-streams | graphs | there are streams for so many captured graphs |
| ecc | after? | an uncorrectable memory error after so many operators |
| lost | after? | the device stops answering after so many operators |
| slow | us | every operator and every queued copy takes so many microseconds longer |

`?` marks a key that may be left out: `after` is 0 then. Each but `missing` takes `device`, the
machine's number of the only device that has it, and `while`, the path of a file: the fault is there
only while the file is. The libraries read the same text (src/runtime/faults.h); here it is checked
before anything starts.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tunan_emulator.byte_count import PATTERN, parse_bytes
from tunan_emulator.settings_error import SettingsError

_NUMBER = r"[0-9]+"
_BYTES = PATTERN.pattern
_OPERATOR = r"aclnn\w+"
# The libraries count in 64 bits; what is larger than these can only be a slip.
_MOST_NUMBER = 10**9
_MOST_BYTES = 1024 << 30
# Absolute, as the processes of a command may work in folders of their own.
_FILE = r"/[^,;]*"
_WHERE_AND_WHEN = {"device?": _NUMBER, "while?": _FILE}
_KEYS: dict[str, dict[str, str]] = {
    "oom": {"bytes": _BYTES, "after?": _NUMBER, **_WHERE_AND_WHEN},
    "missing": {"op": _OPERATOR},
    "exception": {"op": _OPERATOR, **_WHERE_AND_WHEN},
    "hccl-timeout": {"after?": _NUMBER, **_WHERE_AND_WHEN},
    "hccl-buffer": {"op": _OPERATOR, "mb": _NUMBER, **_WHERE_AND_WHEN},
    "graph-streams": {"graphs": _NUMBER, **_WHERE_AND_WHEN},
    "ecc": {"after?": _NUMBER, **_WHERE_AND_WHEN},
    "lost": {"after?": _NUMBER, **_WHERE_AND_WHEN},
    "slow": {"us": _NUMBER, **_WHERE_AND_WHEN},
}


@dataclass(frozen=True)
class Fault:
    """One fault: its kind and its settings."""

    kind: str
    keys: Mapping[str, str]


def parse_faults(text: str) -> list[Fault]:
    """Reads the whole setting; raises SettingsError with the clause that is wrong."""
    return [_parse(clause) for clause in text.split(";") if clause.strip()]


def _parse(clause: str) -> Fault:
    kind, _, rest = clause.partition(":")
    if kind not in _KEYS:
        raise SettingsError(f"unknown fault {kind!r}; known: {', '.join(_KEYS)}")
    pairs = [_pair(clause, pair) for pair in rest.split(",") if pair]
    keys = dict(pairs)
    if len(keys) < len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in keys if names.count(key) > 1)
        raise SettingsError(f"fault {clause!r}: {twice} is given twice")
    wanted = _KEYS[kind]
    for key, value in keys.items():
        pattern = wanted.get(key) or wanted.get(f"{key}?")
        if pattern is None:
            known = ", ".join(name.rstrip("?") for name in wanted)
            raise SettingsError(f"fault {clause!r}: {kind} has no {key!r}, it has {known}")
        if not re.fullmatch(pattern, value):
            raise SettingsError(f"fault {clause!r}: {value!r} is no value for {key}")
        if _is_too_large(pattern, value):
            raise SettingsError(f"fault {clause!r}: {value} is too large for {key}")
    absent = [key for key in wanted if not key.endswith("?") and key not in keys]
    if absent:
        raise SettingsError(f"fault {clause!r}: {kind} needs {', '.join(absent)}")
    return Fault(kind, keys)


def _is_too_large(pattern: str, value: str) -> bool:
    if pattern == _BYTES:
        number = parse_bytes(value)
        return number is None or number > _MOST_BYTES
    return pattern == _NUMBER and (len(value) > 18 or int(value) > _MOST_NUMBER)


def _pair(clause: str, pair: str) -> tuple[str, str]:
    key, equals, value = pair.partition("=")
    if not equals:
        raise SettingsError(f"fault {clause!r}: {pair!r} is not key=value")
    return key, value
