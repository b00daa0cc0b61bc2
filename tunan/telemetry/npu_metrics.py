"""The NPUs' metrics. Names and labels are npu-exporter's (Ascend/mind-cluster,
component/npu-exporter/collector), so that its dashboards and rules fit; what was not told has no
sample, instead of a zero. `npu_utilization` and `npu_memory_used` are our own short names.
"""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tunan import __version__
from tunan.ascend.probes.npu import NpuDevice, NpuReport
from tunan.ascend.probes.npu_smi_fields import Ecc
from tunan.telemetry.reading import Reader, Reading, device_ids

LABELS = (
    "id",
    "model_name",
    "vdie_id",
    "pcie_bus_info",
    "namespace",
    "pod_name",
    "container_name",
)
Value = Callable[[NpuDevice], float | None]


def _health(device: NpuDevice) -> float | None:
    """1 is healthy, 0 is not (`UNKNOWN`, of a device that does not answer, is not either), as
    npu-exporter has it. What is not told is neither."""
    told = (device.health or "").upper()
    return None if told in ("", "-", "NA") else float(told == "OK")


def _utilization(device: NpuDevice) -> float | None:
    total, used = device.hbm_total_mb, device.hbm_used_mb
    return None if not total or used is None else round(100 * used / total)


_GAUGES: tuple[tuple[str, str, Value], ...] = (
    ("npu_chip_info_health_status", "the npu health status", _health),
    ("npu_chip_info_temperature", "degrees Celsius", lambda d: d.temperature_c),
    ("npu_chip_info_power", "watts", lambda d: d.power_w),
    ("npu_chip_info_utilization", "AI cores, per cent", lambda d: d.aicore_percent),
    ("npu_chip_info_hbm_total_memory", "MB", lambda d: d.hbm_total_mb or None),
    ("npu_chip_info_hbm_used_memory", "MB", lambda d: d.hbm_used_mb if d.hbm_total_mb else None),
    ("npu_chip_info_hbm_utilization", "HBM in use, per cent", _utilization),
    ("npu_chip_info_total_memory", "DDR, MB", lambda d: d.ddr_total_mb or None),
    ("npu_chip_info_used_memory", "DDR, MB", lambda d: d.ddr_used_mb if d.ddr_total_mb else None),
    ("npu_utilization", "AI cores, per cent", lambda d: d.aicore_percent),
    ("npu_memory_used", "memory that models are loaded into, MB", lambda d: d.memory_used_mb),
)


class NpuCollector(Collector):
    """What `reader` read last."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def collect(self) -> Iterator[Metric]:
        """Asked by Prometheus' client at every scrape; reads nothing itself."""
        reading = self._reader.last
        yield from _of_reader(reading)
        if reading.report is None:
            return
        devices = list(zip(device_ids(reading.report), reading.report.devices, strict=True))
        labels = {number: _labels(number, device) for number, device in devices}
        yield from _of_machine(reading.report)
        for name, text, value in _GAUGES:
            family = GaugeMetricFamily(name, text, labels=LABELS)
            for number, device in devices:
                if (sample := value(device)) is not None:
                    family.add_metric(labels[number], sample)
            yield family
        yield _names(devices)
        yield _links(reading, labels)
        yield from _errors(reading, devices, labels)
        yield from _processes(reading, devices, labels)


def _labels(number: str, device: NpuDevice) -> list[str]:
    return [number, device.name or "", "", device.bus or "", "", "", ""]


def _of_reader(reading: Reading) -> Iterator[Metric]:
    prefix = "tunan_monitor"
    readable = float(reading.report is not None)
    yield GaugeMetricFamily(f"{prefix}_npus_readable", "1: the last reading worked", value=readable)
    yield GaugeMetricFamily(f"{prefix}_read_seconds", "How long it took", value=reading.seconds)
    yield GaugeMetricFamily(f"{prefix}_read_at_seconds", "Unix time of it", value=reading.at)
    yield CounterMetricFamily(
        f"{prefix}_failed_readings", "Since the start", value=reading.failures
    )
    missing = GaugeMetricFamily(
        f"{prefix}_npu_missing", "1: was seen earlier, is not now", labels=("id",)
    )
    here = frozenset(device_ids(reading.report)) if reading.report else frozenset()
    for number in sorted(reading.seen):
        missing.add_metric([number], float(number not in here))
    yield missing


def _of_machine(report: NpuReport) -> Iterator[Metric]:
    """How many there are. Healthy, not healthy and not told are all of them together."""
    health = [_health(device) for device in report.devices]
    counts = {
        "machine_npu_nums": len(report.devices),
        "machine_card_nums": len({device.npu for device in report.devices}),
        "machine_healthy_npu_nums": health.count(1),
        "machine_unhealthy_npu_nums": health.count(0),
        "machine_unknown_npu_nums": health.count(None),
    }
    for name, count in counts.items():
        yield GaugeMetricFamily(name, "how many were seen", value=count)
    if report.driver:
        versions = GaugeMetricFamily(
            "node_base_info", "always 1", labels=("exporterVersion", "driverVersion")
        )
        versions.add_metric((f"tunan-{__version__}", report.driver), 1)
        yield versions


_ERRORS: tuple[tuple[str, str, Callable[[Ecc], int | None]], ...] = (
    ("single_bit_error_cnt", "corrected", lambda ecc: ecc.single_bit),
    ("double_bit_error_cnt", "not corrected", lambda ecc: ecc.double_bit),
    ("double_bit_isolated_pages_cnt", "pages out of use", lambda ecc: ecc.isolated_pages),
)


def _errors(
    reading: Reading, devices: list[tuple[str, NpuDevice]], labels: dict[str, list[str]]
) -> Iterator[Metric]:
    """Of HBM alone: the counts of a device without it are those of other memory."""
    for name, text, value in _ERRORS:
        family = GaugeMetricFamily(f"npu_chip_info_hbm_ecc_{name}", text, labels=LABELS)
        for place, (number, device) in enumerate(devices):
            ecc = reading.ecc.get(place) if device.hbm_total_mb else None
            if ecc is not None and (count := value(ecc)) is not None:
                family.add_metric(labels[number], count)
        yield family


def _names(devices: list[tuple[str, NpuDevice]]) -> Metric:
    family = GaugeMetricFamily(
        "npu_chip_info_name", "always 1", labels=(LABELS[0], "name", *LABELS[2:])
    )
    for number, device in devices:
        family.add_metric(_labels(number, device), 1)
    return family


def _links(reading: Reading, labels: dict[str, list[str]]) -> Metric:
    family = GaugeMetricFamily("npu_chip_info_link_status", "1: its port is up", labels=LABELS)
    for place, names in enumerate(labels.values()):
        if (up := reading.links.get(place)) is not None:
            family.add_metric(names, float(up))
    return family


def _processes(
    reading: Reading, devices: list[tuple[str, NpuDevice]], labels: dict[str, list[str]]
) -> Iterator[Metric]:
    count = GaugeMetricFamily("npu_chip_info_process_info_num", "processes", labels=LABELS)
    each = GaugeMetricFamily(
        "npu_chip_info_process_info", "MB", labels=(*LABELS, "process_id", "container_id")
    )
    for number, device in devices:
        held = reading.report.processes_of(device) if reading.report else None
        if held is None:
            continue  # not told, which is not none
        count.add_metric(labels[number], len(held))
        if not held:  # npu-exporter says so too
            each.add_metric([*labels[number], "", ""], 0)
        for process in held:
            if process.memory_mb is not None:
                each.add_metric([*labels[number], str(process.pid), ""], process.memory_mb)
    yield count
    yield each
