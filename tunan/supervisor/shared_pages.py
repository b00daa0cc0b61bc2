"""How much memory engines take, pages that they share counted once (PSS)."""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from tunan.supervisor.process import descendants

KIB = 1 << 10


def proportional_bytes(pids: Iterable[int], root: Path = Path("/proc")) -> int:
    """Memory of processes together; a page that N processes map counts 1/N for each.

    Those that are gone, or may not be looked at, count nothing. The kernel walks their page tables
    for it: milliseconds a gigabyte.
    """
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            text = (root / str(pid) / "smaps_rollup").read_text(encoding="ascii")
            total += sum(
                int(line.split()[1]) * KIB for line in text.splitlines() if line.startswith("Pss:")
            )
    return total


class SharedPages:
    """What each engine took when it was last looked at, and all of them together."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        self._met: set[str] = set()

    def of(self, name: str) -> int | None:
        """Bytes of engine `name`, pages that it shares counted in part; None: not measured."""
        return self._of.get(name)

    async def measure(self, engines: Mapping[str, int], new: str) -> int | None:
        """Measures `engines` (name: process id), of which `new` has just come.

        Returns the bytes that it added to those of the others; None if it is the only one, or
        has come before: what the others took without it is then not known.
        """
        before = sum(self._of.values())
        self._of = await asyncio.to_thread(
            lambda: {
                name: proportional_bytes([pid, *descendants(pid)]) for name, pid in engines.items()
            }
        )
        first_time = new not in self._met
        self._met.add(new)
        return sum(self._of.values()) - before if first_time and before else None
