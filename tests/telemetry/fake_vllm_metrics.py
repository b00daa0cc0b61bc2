"""Metrics of an engine that is not there, under vLLM's names: one that works, or one that hangs."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

LABELS = ("model_name", "engine")
GAUGES = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
)
COUNTERS = (
    "vllm:num_preemptions",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
)
SUCCESS = "vllm:request_success"  # with one label more
TPOT = "vllm:request_time_per_output_token_seconds"
TPOT_BUCKETS = (0.05, 0.1, 0.2, 1.0)  # some of vLLM's


class FakeVllmMetrics:
    """Each call is one scrape; while `hangs`, requests wait and nothing is counted any more."""

    def __init__(self, hangs: bool = False) -> None:
        self._hangs = hangs
        self._registry = CollectorRegistry()
        for name in GAUGES:
            gauge = Gauge(name, "a gauge", LABELS, registry=self._registry)
            gauge.labels("fake", "0").set(0.5)
        self._counters = [
            Counter(name, "a counter", LABELS, registry=self._registry).labels("fake", "0")
            for name in COUNTERS
        ]
        success = Counter(
            SUCCESS, "a counter", (*LABELS, "finished_reason"), registry=self._registry
        )
        self._counters.append(success.labels("fake", "0", "stop"))
        self._tpot = Histogram(
            TPOT, "a histogram", LABELS, registry=self._registry, buckets=TPOT_BUCKETS
        ).labels("fake", "0")

    def __call__(self) -> str:
        """The text of `/metrics`. Its answers are slower than the objective."""
        if not self._hangs:
            for counter in self._counters:
                counter.inc()
            self._tpot.observe(0.15)
        return generate_latest(self._registry).decode()
