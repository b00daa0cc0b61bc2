"""What runs on the device, what on the host's cores, and what each crossing costs.

Matrix work stays on the device; an operator that the device lacks runs on the CPU, which costs
a copy of every input and every result. The estimates are lower bounds: bandwidths that large
copies reach, a fixed cost for each blocking copy, and for work on the CPU the time its memory
takes to read and write the operands once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tunan.ops.device_facts import GIGA, Devices
from tunan.ops.verdict import Fate

MICRO = 1_000_000


@dataclass(frozen=True)
class Row:
    """Equal calls of one operator in one layer kind of one step.

    `count` is a step's: of all layers of the kind in the real model. `dtypes` and `shapes` are
    of the tensor inputs; `input_bytes` and `output_bytes` have one entry a tensor of one call.
    """

    step: str
    layer: str
    unit: str
    operator: str
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    output_dtypes: tuple[str, ...]
    count: int
    fate: Fate
    as_written: Fate
    reason: str
    replacement: str
    input_bytes: tuple[int, ...]
    output_bytes: tuple[int, ...]
    modules: tuple[str, ...]

    @property
    def crossing_bytes(self) -> int:
        """Bytes that cross between device and host in a step because of this row."""
        if self.fate is Fate.CPU:
            return self.count * (sum(self.input_bytes) + sum(self.output_bytes))
        return self.count * _looked_at(self) if self.fate is Fate.COMPOSED else 0


@dataclass(frozen=True)
class Crossing:
    """Copies between device and host in one step, of one cause.

    `copies` and `bytes` are a step's, `microseconds` the estimate for all of them with the
    work on the CPU between.
    """

    step: str
    what: str
    where: str
    copies: int
    bytes: int
    microseconds: float


@dataclass(frozen=True)
class Placement:
    """Where the parts of a model run, and the crossings of each step."""

    npu: tuple[str, ...]
    cpu: tuple[str, ...]
    crossings: tuple[Crossing, ...]

    def of_step(self, step: str) -> tuple[int, int, float]:
        """Copies, bytes and microseconds of a step."""
        chosen = [crossing for crossing in self.crossings if crossing.step == step]
        return (
            sum(crossing.copies for crossing in chosen),
            sum(crossing.bytes for crossing in chosen),
            sum(crossing.microseconds for crossing in chosen),
        )


def place(
    rows: Sequence[Row], tokens: dict[str, tuple[int, int]], facts: Devices, link_gbps: float
) -> Placement:
    """Where the operators of `rows` run. `tokens` has for each step how many token ids go in
    and how many come out."""
    crossings = [
        *(c for step, counts in tokens.items() for c in _tokens(step, counts, facts, link_gbps)),
        *(_crossing(row, facts, link_gbps) for row in rows if row.crossing_bytes),
    ]
    on_cpu = {row.operator for row in rows if row.fate is Fate.CPU}
    on_npu = {_part(row) for row in rows if row.fate in (Fate.FUSED, Fate.NPU, Fate.COMPOSED)}
    parts = sorted(on_npu, key=lambda part: (part == "the rest", part))
    return Placement(
        npu=tuple(parts),
        cpu=("tokenisation, scheduling, HTTP", *sorted(on_cpu)),
        crossings=tuple(crossings),
    )


def _part(row: Row) -> str:
    return row.unit or "the rest"


def _tokens(
    step: str, counts: tuple[int, int], facts: Devices, link_gbps: float
) -> Iterable[Crossing]:
    for count, what in zip(counts, ("token ids to the device", "sampled tokens back"), strict=True):
        size = 8 * count  # int64
        yield Crossing(step, what, "model", 1, size, _copy_us(1, size, facts, link_gbps))


def _crossing(row: Row, facts: Devices, link_gbps: float) -> Crossing:
    operands = len(row.input_bytes) + len(row.output_bytes)
    copies = row.count * (operands if row.fate is Fate.CPU else 1)
    cost = _copy_us(copies, row.crossing_bytes, facts, link_gbps)
    if row.fate is Fate.CPU:
        cost += row.crossing_bytes / (facts.host.gbps * GIGA) * MICRO
    what = "falls back to the CPU" if row.fate is Fate.CPU else "read on the host"
    return Crossing(row.step, f"{row.operator} {what}", row.layer, copies, row.crossing_bytes, cost)


def _copy_us(copies: int, size: int, facts: Devices, link_gbps: float) -> float:
    return copies * facts.crossing_us + size / (link_gbps * GIGA) * MICRO


def _looked_at(row: Row) -> int:
    """Bytes of the tensor a composition reads on the host: the smallest of its inputs."""
    return min(row.input_bytes, default=0)
