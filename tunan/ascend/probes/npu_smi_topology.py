"""`npu-smi info -t topo`: how NPUs reach one another, and the CPUs near each."""

import re
from dataclasses import dataclass

from tunan.ascend.probes.probe import Probe

SOURCE = "npu-smi info -t topo"
_ROW = re.compile(r"\s*(?:NPU|Phy-ID)([0-9]{1,4})\s+(\S.*)")
_KINDS = ("X", "SYS", "PHB", "PIX", "PXB", "HCCS", "HCCS_SW", "SIO", "UB", "NA")


@dataclass(frozen=True)
class Topology:
    """`links[i][j]`: how device i reaches device j (`HCCS`, `PIX`, `SYS`, ...; `X` is itself).
    `affinity[i]`: the CPUs near it, as the kernel lists them, None if not said."""

    links: dict[int, dict[int, str]]
    affinity: dict[int, str | None]

    def kinds(self) -> frozenset[str]:
        """Every kind of link between two different devices."""
        return frozenset(
            kind for row in self.links.values() for kind in row.values() if kind not in ("X", "NA")
        )


def parse_topology(text: str) -> Probe[Topology]:
    """Reads the matrix; a row that ends early has links to the devices it reaches."""
    columns: list[int] = []
    links: dict[int, dict[int, str]] = {}
    affinity: dict[int, str | None] = {}
    for line in text.splitlines():
        heads = [int(n) for n in re.findall(r"(?:NPU|Phy-ID)([0-9]{1,4})(?![0-9])", line)]
        if len(heads) > 1 or (heads and "affinity" in line.lower()):
            columns = heads
        elif columns and (match := _ROW.fullmatch(line.rstrip())):
            words = match[2].split()
            kinds = [word for word in words[: len(columns)] if word.upper() in _KINDS]
            links[int(match[1])] = dict(zip(columns, kinds, strict=False))
            affinity[int(match[1])] = _cpus(words[len(kinds) :])
    if links:
        return Probe(Topology(links, affinity), SOURCE)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return Probe.failed(SOURCE, f"it printed `{lines[0][:80]}`" if lines else "no output")


def _cpus(words: list[str]) -> str | None:
    text = words[-1] if words else ""
    return text if re.fullmatch(r"[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*", text) else None
