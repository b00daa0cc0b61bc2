"""A few figures of the host, for machines without a node exporter."""

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tunan.ascend.probes.host import look_at_memory
from tunan.ascend.probes.numbers import decimal
from tunan.ascend.probes.sight import Sight


class HostCollector(Collector):
    """Memory and load, read at every scrape; `look` gives a fresh view of the machine."""

    def __init__(self, look: Callable[[], Sight]) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        """What cannot be read has no sample."""
        sight = self._look()
        memory = look_at_memory(sight).value
        if memory:
            yield _gauge("memory_total_bytes", "RAM", memory.total)
            if memory.available is not None:
                yield _gauge("memory_available_bytes", "RAM that is free", memory.available)
        words = (sight.read("/proc/loadavg") or "").split()
        load = decimal(words[0]) if words else None
        if load is not None:
            yield _gauge("load1", "Processes that run or wait, over a minute", load)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"tunan_host_{name}", text, value=value)
