"""The table of `npu-smi info`, in every layout from 23.0 to 26.0.

Two rows a die. The first has number, name, health, power, temperature and huge pages; the second
chip number, bus, load and memory. What differs: `Phy-ID` or `Device` beside the chip number,
no HBM column (310P), the name in a cell of its own (950), wide columns (26.x), numbers
without a blank before the slash, `-` or `NA` for unknown. Cells are found by their bars,
never by position, and a table may end anywhere.
"""

import re
from dataclasses import replace

from tunan.ascend.probes.npu import NpuDevice, NpuProcess, NpuReport
from tunan.ascend.probes.numbers import decimal, temperature, whole
from tunan.ascend.probes.probe import Probe

SOURCE = "npu-smi info"
MOST_DEVICES = 256

_VERSION = re.compile(r"npu-smi\s+(\S+)(?:\s+Version:\s*(\S+))?", re.IGNORECASE)
_FAILURE = re.compile(r"ret(?:urn)? (?:is|code[:=]?) *(-[0-9]{4,5})", re.IGNORECASE)
_BUS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")
_HEALTH = re.compile(r"[A-Za-z]{1,20}")
_AMOUNT = r"(-?[0-9]+|-|NA)"
_PAIR = re.compile(rf"{_AMOUNT}\s*/\s*{_AMOUNT}")
_NO_PROCESSES = re.compile(r"no running processes found in npu\s*([0-9]+)", re.IGNORECASE)
_MEANING = {
    -8005: "the driver does not answer: is it installed, and are /dev/davinci* in this container?",
    -8008: "there is no such device",
    -8009: "the driver refuses: is this user in the group HwHiAiUser?",
    -8012: "the devices are not ready yet: wait for their start",
    -8020: "the devices are in use by another container or virtual machine",
}


def parse_table(text: str) -> Probe[NpuReport]:
    """Reads what `npu-smi info` printed. The error says why, where there is no device in it."""
    reading = _Reading()
    for line in text.splitlines():
        reading.take(line)
    reading.end_device()
    if reading.devices:
        return Probe(reading.report(), SOURCE)
    return Probe.failed(SOURCE, _why(text))


def failure_meaning(code: int) -> str:
    """What a DCMI return code says about this machine."""
    return _MEANING.get(code, "see the DCMI error codes of the driver's documentation")


def _why(text: str) -> str:
    if match := _FAILURE.search(text):
        code = int(match[1])
        return f"npu-smi failed with {code}: {failure_meaning(code)}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"no device in its output, which begins `{lines[0][:80]}`" if lines else "no output"


class _Reading:
    """The rows read so far. `_first` is a device whose second row has not come yet."""

    def __init__(self) -> None:
        self.devices: list[NpuDevice] = []
        self._first: NpuDevice | None = None
        self._processes: list[NpuProcess] = []
        self._told: set[int] = set()
        self._driver: str | None = None
        self._physical: bool | None = None
        self._hbm: bool | None = None
        self._named_apart = False
        self._in_processes = False

    def report(self) -> NpuReport:
        return NpuReport(
            devices=tuple(self.devices),
            driver=self._driver,
            processes=tuple(self._processes),
            told=frozenset(self._told),
            dual_die=self._physical,
        )

    def take(self, line: str) -> None:
        stripped = line.strip()
        if stripped.startswith("|") and not stripped.endswith("|"):
            stripped = stripped[: -len(stripped.split()[-1])]  # cut: half a number is no number
        if match := _VERSION.search(stripped):
            self._driver = (match[2] or match[1]).strip("|")
        elif match := _NO_PROCESSES.search(stripped):
            self._told.add(int(match[1][:9]))
        elif stripped.startswith("|"):
            self._row([cell.strip() for cell in stripped.strip("|").split("|")])

    def end_device(self) -> None:
        """A device whose second row never came is kept with what its first row said."""
        if self._first and len(self.devices) < MOST_DEVICES:
            self.devices.append(self._first)
        self._first = None

    def _row(self, cells: list[str]) -> None:
        joined = " ".join(cells).lower()
        if "process id" in joined:
            self.end_device()
            self._in_processes = True
        elif "bus-id" in joined:
            self._physical = "phy-id" in joined
            self._hbm = "hbm-usage" in joined
        elif self._in_processes:
            self._process_row(cells)
        elif "health" in joined:
            self._named_apart = len(cells) >= 4
        else:
            self._device_row(cells)

    def _device_row(self, cells: list[str]) -> None:
        if self._named_apart and len(cells) < 4:
            return  # cut
        if len(cells) >= 4:  # the name stands in a cell of its own
            cells = [f"{cells[0]} {cells[1]}".strip(), *cells[2:]]
        if len(cells) < 2:
            return
        # The second row's cell is a bus, which a cut leaves short; a health is a word.
        if self._first and (not _HEALTH.fullmatch(cells[1]) or cells[1] == "NA"):
            self._first = self._second_row(self._first, cells)
            self.end_device()
            return
        self.end_device()
        self._first = _first_row(cells)

    def _second_row(self, device: NpuDevice, cells: list[str]) -> NpuDevice:
        numbers = cells[0].split()
        usage = cells[2] if len(cells) > 2 else ""
        pairs = [(whole(used), whole(total)) for used, total in _PAIR.findall(usage)]
        beside = pairs[0] if pairs else (None, None)
        hbm = pairs[1] if len(pairs) > 1 and self._hbm is not False else (None, None)
        return replace(
            device,
            chip=whole(numbers[0]) if numbers else None,
            physical_id=whole(numbers[1]) if self._physical and len(numbers) > 1 else None,
            bus=cells[1] if _BUS.fullmatch(cells[1]) else None,
            aicore_percent=whole(usage.split()[0]) if usage.split() else None,
            ddr_used_mb=beside[0],
            ddr_total_mb=beside[1],
            hbm_used_mb=hbm[0],
            hbm_total_mb=hbm[1],
        )

    def _process_row(self, cells: list[str]) -> None:
        numbers = cells[0].split()
        npu = whole(numbers[0]) if numbers else None
        pid = whole(cells[1]) if len(cells) > 1 else None
        if npu is None or pid is None or len(self._processes) >= 64 * MOST_DEVICES:
            return
        self._told.add(npu)
        chip = whole(numbers[1]) if len(numbers) > 1 else None
        name = (cells[2] if len(cells) > 2 else "") or None
        memory = whole(cells[3]) if len(cells) > 3 else None
        self._processes.append(NpuProcess(npu, chip, pid, name, memory))


def _first_row(cells: list[str]) -> NpuDevice | None:
    number, _, name = cells[0].partition(" ")
    npu = whole(number)
    if npu is None:
        return None
    state = cells[2] if len(cells) > 2 else ""
    words = _PAIR.sub(" ", state).split()
    pair = _PAIR.search(state)
    return NpuDevice(
        npu=npu,
        name=name.strip() or None,
        health=cells[1] or None,
        power_w=decimal(words[0]) if words else None,
        temperature_c=temperature(words[1]) if len(words) > 1 else None,
        hugepages_used=whole(pair[1]) if pair else None,
        hugepages_total=whole(pair[2]) if pair else None,
    )
