"""The `key : value` outputs of npu-smi: `-t board`, `-t usages`, `-t health`, `-t ecc`, `-m`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tunan.ascend.probes.npu import NpuProcess
from tunan.ascend.probes.numbers import whole
from tunan.ascend.probes.probe import Probe

Fields = dict[str, str]

_PROCESS = re.compile(
    r"Process id:\s*([0-9]{1,10})\s+Process name:(.*?)\s+Process memory\(MB\):\s*([0-9]{1,12})"
)


@dataclass(frozen=True)
class Board:
    """`-t board`: versions and whether driver and firmware call themselves compatible."""

    software: str | None
    firmware: str | None
    compatible: bool | None
    pci: str | None


@dataclass(frozen=True)
class Health:
    """`-t health`: `OK`, `Warning`, `Alarm`, `Critical` or `UNKNOWN`, and the codes behind it."""

    status: str | None
    codes: tuple[str, ...]


@dataclass(frozen=True)
class Ecc:
    """`-t ecc` of the HBM: errors since the driver was loaded, and pages taken out of use."""

    single_bit: int | None
    double_bit: int | None
    isolated_pages: int | None


@dataclass(frozen=True)
class Mapped:
    """A row of `info -m`: the number that software uses (`logic_id`) for a die."""

    npu: int
    chip: int
    logic_id: int | None
    name: str


def parse_board(text: str) -> Probe[Board]:
    """`npu-smi info -t board -i N`."""
    fields = _fields(text)
    if "Software Version" not in fields and "Firmware Version" not in fields:
        return Probe.failed("npu-smi info -t board", _first_line(text))
    compatible = fields.get("Compatibility", "").lower()
    vendor, device = (
        fields.get(f"PCI {part} ID", "").lower().removeprefix("0x") for part in ("Vendor", "Device")
    )
    board = Board(
        software=_said(fields, "Software Version"),
        firmware=_said(fields, "Firmware Version"),
        compatible=None if compatible in ("", "na") else compatible == "ok",
        pci=f"{vendor}:{device}" if vendor and device else None,
    )
    return Probe(board, "npu-smi info -t board")


def parse_health(text: str) -> Probe[Health]:
    """`npu-smi info -t health -i N -c C`."""
    fields = _fields(text)
    status = _said(fields, "Health Status") or _said(fields, "Health")
    if status is None:
        return Probe.failed("npu-smi info -t health", _first_line(text))
    codes = re.findall(r"\b(?:0x)?[0-9A-Fa-f]{8}\b", fields.get("Error Code", ""))
    return Probe(Health(status, tuple(codes)), "npu-smi info -t health")


def parse_ecc(text: str, chip: int = 0, asked: bool = False) -> Probe[Ecc]:
    """`npu-smi info -t ecc -i N`: of one die of the module.

    Each die's counts end with its `Chip ID`, where that is printed at all. Without one they are
    those of die 0, or of the die that was `asked` for alone (`-c C`). A chip without HBM counts its
    DDR.
    """
    source = "npu-smi info -t ecc"
    parts = _of_each_die(text)
    if len(parts) == 1 and None in parts:
        parts = {chip if asked else 0: parts[None]}
    fields = parts.get(chip)
    if fields is None:
        return Probe.failed(source, f"no die {chip} in it" if parts else _first_line(text))
    memory = "hbm" if any(key.startswith("hbm") for key in fields) else "ddr"

    def count(*words: str) -> int | None:
        for key, value in fields.items():
            if key.startswith(memory) and all(word in key for word in words):
                return whole(value)
        return None

    isolated = count("double", "bit isolated")
    ecc = Ecc(
        single_bit=count("single", "error count"),
        double_bit=count("double", "error count"),
        isolated_pages=count("isolated page count") if isolated is None else isolated,
    )
    if ecc == Ecc(None, None, None):
        return Probe.failed(source, _first_line(text))
    return Probe(ecc, source)


def _of_each_die(text: str) -> dict[int | None, Fields]:
    """The fields by `Chip ID`, which follows them; under None what none follows."""
    parts: dict[int | None, Fields] = {}
    lines: list[str] = []
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and key.strip().lower() == "chip id":
            fields = {k.lower(): v for k, v in _fields("\n".join(lines)).items()}
            parts.setdefault(whole(value), fields)
            lines = []
        else:
            lines.append(line)
    rest = {key.lower(): value for key, value in _fields("\n".join(lines)).items()}
    if any("error count" in key for key in rest):
        parts.setdefault(None, rest)
    return parts


def parse_processes(npu: int, text: str) -> Probe[tuple[NpuProcess, ...]]:
    """`npu-smi info -t proc-mem -i N`; empty only where it says so itself."""
    source = "npu-smi info -t proc-mem"
    found = tuple(
        NpuProcess(npu, None, int(pid), name.strip() or None, int(memory))
        for pid, name, memory in _PROCESS.findall(text)
    )
    if found or "no process in device" in text.lower():
        return Probe(found, source)
    return Probe.failed(source, _first_line(text))


def parse_mapping(text: str) -> Probe[tuple[Mapped, ...]]:
    """`npu-smi info -m`, without the rows of the management controllers (Mcu)."""
    rows = tuple(row for row in _mapped(text) if row.name.lower() != "mcu")
    if rows:
        return Probe(rows, "npu-smi info -m")
    return Probe.failed("npu-smi info -m", _first_line(text))


def _mapped(text: str) -> Iterator[Mapped]:
    for line in text.splitlines():
        cells = re.split(r"\s{2,}|\t+", line.strip())
        if len(cells) < 4:
            continue
        npu, chip = whole(cells[0]), whole(cells[1])
        if npu is not None and chip is not None:
            yield Mapped(npu, chip, whole(cells[2]), cells[-1])


def _fields(text: str) -> Fields:
    """The first value of each key: what follows is of the board's management controller."""
    fields: Fields = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and key.strip():
            fields.setdefault(key.strip(), value.strip())
    return fields


def _said(fields: Fields, key: str) -> str | None:
    value = fields.get(key, "")
    return None if value in ("", "NA", "-") else value


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"it printed `{lines[0][:80]}`" if lines else "no output"
