"""The gateway's Prometheus metrics, and those of its replicas beside them."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tunan.gateway.election import Election
from tunan.gateway.pool import Pool
from tunan.gateway.seat import Cause

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120)


class Metrics:
    """What one gateway counts since it was started; `rate()` in Prometheus bridges restarts."""

    def __init__(self, pool: Pool, election: Election | None = None) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Replicas(pool))
        if election is not None:
            self.registry.register(_Holding(election))
        self.requests = self._counter("requests", "Requests answered", "key", "status")
        self.tokens = self._counter("tokens", "Tokens of prompts and answers", "key")
        self.losses = self._counter(
            "losses", "Requests that lost their replica while it answered", "replica", "reason"
        )
        self.resumed = self._counter("resumed_streams", "Streams continued at another replica")
        self.broken = self._counter("broken_streams", "Streams that ended with an error event")
        self.prefilled = self._counter("reprefilled_tokens", "Tokens read again to continue")
        self.refused = self._counter("refused", "Requests refused by the gateway", "reason")
        self.waiting = Gauge(
            "tunan_gateway_queue_length", "Requests that wait", registry=self.registry
        )
        self.queue_seconds = self._histogram("queue_seconds", "Wait for a replica")
        self.first_token = self._histogram("ttft_seconds", "Request to first event, at the client")
        self.between = self._histogram("itl_seconds", "Between two writes of a stream")
        self.stalls = self._histogram("stall_seconds", "Pause of a stream that changed its replica")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"tunan_gateway_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"tunan_gateway_{name}", text, registry=self.registry, buckets=_SECONDS)

    def text(self) -> bytes:
        """All of them in Prometheus' text format."""
        return generate_latest(self.registry)


class _Replicas(Collector):
    """Read when asked, so that nothing has to be kept in step."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def collect(self) -> Iterable[Metric]:
        """One sample a replica of each."""
        labels = ("replica", "role")
        ready = GaugeMetricFamily("tunan_gateway_replica_ready", "1: it is asked", labels=labels)
        running = GaugeMetricFamily(
            "tunan_gateway_replica_in_flight", "Requests running at it", labels=labels
        )
        tokens = GaugeMetricFamily(
            "tunan_gateway_replica_outstanding_tokens", "Tokens it still owes", labels=labels
        )
        for replica in self._pool.replicas:
            names = (replica.name, str(replica.role))
            ready.add_metric(names, float(replica.ready))
            running.add_metric(names, replica.in_flight)
            tokens.add_metric(names, replica.outstanding_tokens)
        return (ready, running, tokens)


class _Holding(Collector):
    """The shared address, where there is one."""

    def __init__(self, election: Election) -> None:
        self._election = election

    def collect(self) -> Iterable[Metric]:
        """Whether it is here, and how often it came and went."""
        election = self._election
        holder = GaugeMetricFamily("tunan_gateway_holder", "1: the shared address is here")
        holder.add_metric((), float(election.holding))
        etcd = GaugeMetricFamily("tunan_gateway_etcd_up", "1: etcd answers")
        etcd.add_metric((), float(election.etcd_answers))
        came = CounterMetricFamily("tunan_gateway_takeovers", "Times that the address came here")
        came.add_metric((), election.takeovers)
        went = CounterMetricFamily(
            "tunan_gateway_stand_downs", "Times that it went", labels=("reason",)
        )
        for cause in Cause:
            went.add_metric((str(cause),), election.ended[cause])
        failed = CounterMetricFamily(
            "tunan_gateway_hook_failures", "Runs of the hook that failed", labels=("action",)
        )
        for action, times in election.hook_failures.items():
            failed.add_metric((action,), times)
        return (holder, etcd, came, went, failed)


def merged(texts: dict[str, str]) -> bytes:
    """The metrics of several replicas, by name, each sample with the label `replica`.

    The format wants all samples of a metric in one place, so they are gathered by metric.
    """
    families: dict[str, tuple[list[str], list[str]]] = {}
    for name, text in texts.items():
        for family, heads, samples in _families(text):
            _, lines = families.setdefault(family, (heads, []))
            lines.extend(_labelled(sample, name) for sample in samples)
    out = [line for heads, lines in families.values() for line in (*heads, *lines)]
    return "".join(f"{line}\n" for line in out).encode()


def _families(text: str) -> Iterator[tuple[str, list[str], list[str]]]:
    family, heads, samples = "", list[str](), list[str]()
    for line in text.splitlines():
        words = line.split(" ", 3)
        if line.startswith(("# HELP ", "# TYPE ")):
            if words[2] != family:
                if family:
                    yield family, heads, samples
                family, heads, samples = words[2], [], []
            heads.append(line)
        elif line and not line.startswith("#"):
            family = family or line.partition("{")[0].partition(" ")[0]
            samples.append(line)
    if family:
        yield family, heads, samples


def _labelled(sample: str, replica: str) -> str:
    brace, space = sample.find("{"), sample.find(" ")
    if 0 <= brace < space or space < 0:
        return f'{sample[: brace + 1]}replica="{replica}",{sample[brace + 1 :]}'
    return f'{sample[:space]}{{replica="{replica}"}}{sample[space:]}'
