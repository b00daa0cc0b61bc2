"""The NPUs of a machine from the best source there is: libdcmi, else npu-smi's table."""

import json
from typing import Any

from tunan.ascend.probes import npu_smi_fields as fields
from tunan.ascend.probes.dcmi import LIBRARIES
from tunan.ascend.probes.npu import NpuDevice, NpuProcess, NpuReport
from tunan.ascend.probes.npu_smi_table import SOURCE, parse_table
from tunan.ascend.probes.npu_smi_topology import Topology, parse_topology
from tunan.ascend.probes.probe import Probe
from tunan.ascend.probes.sight import Sight

_NUMBERS = {
    "npu", "chip", "physical_id", "aicore_percent", "ddr_used_mb", "ddr_total_mb", "hbm_used_mb",
    "hbm_total_mb", "hugepages_used", "hugepages_total", "ecc_single_bit", "ecc_double_bit",
}  # fmt: skip
_TEXTS = {"name", "health", "bus"}
_DECIMALS = {"power_w", "temperature_c"}


def look_at_npus(sight: Sight) -> Probe[NpuReport]:
    """Asks libdcmi, then npu-smi; the error is the one of the last that was asked."""
    for library in LIBRARIES:
        if sight.exists(library):
            found = read_dcmi(sight.run("python", "-m", "tunan.ascend.probes.dcmi", library).output)
            if found.value is not None:
                return found
    ran = sight.run("npu-smi", "info")
    return Probe.failed(SOURCE, ran.error) if ran.error else parse_table(ran.output)


def read_dcmi(text: str) -> Probe[NpuReport]:
    """What `tunan.ascend.probes.dcmi` printed, last: the driver's libraries may print before it."""
    text = next((line for line in reversed(text.splitlines()) if line.startswith("{")), "")
    try:
        answer = json.loads(text)
        devices = [_device(entry) for entry in answer["devices"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return Probe.failed("libdcmi", _dcmi_error(text))
    if not devices:
        return Probe.failed("libdcmi", "it knows no device")
    processes: list[NpuProcess] = []
    told: set[int] = set()
    for device, entry in zip(devices, answer["devices"], strict=True):
        rows = entry.get("processes")
        if isinstance(rows, list):
            told.add(device.npu)
            processes += [_process(device, row) for row in rows if isinstance(row, dict)]
    numbers = [device.npu for device in devices]
    driver = answer.get("driver")
    return Probe(
        NpuReport(
            devices=tuple(devices),
            driver=driver if isinstance(driver, str) else None,
            processes=tuple(processes),
            told=frozenset(told),
            dual_die=len(set(numbers)) < len(numbers),
        ),
        "libdcmi",
    )


def look_at_topology(sight: Sight) -> Probe[Topology]:
    """`npu-smi info -t topo`."""
    ran = sight.run("npu-smi", "info", "-t", "topo")
    failed: Probe[Topology] = Probe.failed("npu-smi info -t topo", ran.error or "")
    return failed if ran.error else parse_topology(ran.output)


def look_at_ecc(sight: Sight, device: NpuDevice) -> Probe[fields.Ecc]:
    """From the device itself where libdcmi told it, else `npu-smi info -t ecc`."""
    if device.ecc_double_bit is not None:
        return Probe(fields.Ecc(device.ecc_single_bit, device.ecc_double_bit, None), "libdcmi")
    chip, command = device.chip or 0, ("npu-smi", "info", "-t", "ecc", "-i", str(device.npu))
    ran = sight.run(*command)
    if ran.error:
        return Probe.failed("npu-smi info -t ecc", ran.error)
    found = fields.parse_ecc(ran.output, chip)
    if found.value is not None or not chip:
        return found
    again = sight.run(*command, "-c", str(chip))
    return found if again.error else fields.parse_ecc(again.output, chip, asked=True)


def look_at_health(sight: Sight, device: NpuDevice) -> Probe[fields.Health]:
    """The codes behind a health that is not OK: `npu-smi info -t health`."""
    command = (
        "npu-smi",
        "info",
        "-t",
        "health",
        "-i",
        str(device.npu),
        "-c",
        str(device.chip or 0),
    )
    ran = sight.run(*command)
    failed: Probe[fields.Health] = Probe.failed("npu-smi info -t health", ran.error or "")
    return failed if ran.error else fields.parse_health(ran.output)


def _device(entry: Any) -> NpuDevice:
    if not isinstance(entry, dict):
        raise TypeError("not a device")
    values: dict[str, Any] = {key: _number(entry.get(key)) for key in _NUMBERS}
    values |= {key: str(entry[key]) if entry.get(key) else None for key in _TEXTS}
    for key in _DECIMALS:
        value = entry.get(key)
        values[key] = float(value) if isinstance(value, int | float) else None
    if values["npu"] is None:
        raise ValueError("a device without a number")
    return NpuDevice(**values)


def _number(value: object) -> int | None:
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if is_number and isinstance(value, int) else None


def _process(device: NpuDevice, row: dict[str, Any]) -> NpuProcess:
    pid = _number(row.get("pid")) or 0
    return NpuProcess(device.npu, device.chip, pid, None, _number(row.get("memory_mb")))


def _dcmi_error(text: str) -> str:
    try:
        error = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "libdcmi gave no answer"
    return str(error)[:200]
