"""Writes the Grafana dashboards in deploy/grafana: `python scripts/dashboards.py`.

A panel is a title, a unit of Grafana's, and expressions with their legends; everything else of
the JSON is the same for all of them.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "deploy/grafana"
SOURCE = {"type": "prometheus", "uid": "${source}"}
WIDTH, HEIGHT, COLUMNS = 12, 8, 2


@dataclass(frozen=True)
class Panel:
    """`targets`: expression and legend of each line."""

    title: str
    unit: str
    targets: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Dashboard:
    """`name` is the file's, and the uid in Grafana."""

    name: str
    title: str
    panels: tuple[Panel, ...]


def one(title: str, unit: str, expression: str, legend: str) -> Panel:
    """A panel of one expression."""
    return Panel(title, unit, ((expression, legend),))


_GATEWAY = "{{instance}}"
_REPLICA = "{{instance}} {{replica}}"
_NPU = "{{instance}} NPU {{id}}"

SERVICE = Dashboard(
    "tunan-service",
    "Tunan: service",
    (
        Panel(
            "Time to first token",
            "s",
            (("tunan:ttft_seconds:p50_5m", "median"), ("tunan:ttft_seconds:p99_5m", "99 %")),
        ),
        Panel(
            "Time per further token",
            "s",
            (("tunan:tpot_seconds:p50_5m", "median"), ("tunan:tpot_seconds:p99_5m", "99 %")),
        ),
        Panel(
            "Requests over their limit (allowed: 1 %)",
            "percentunit",
            (
                ("tunan:ttft_missed:ratio5m", "first token, 5 min"),
                ("tunan:ttft_missed:ratio1h", "first token, 1 h"),
                ("tunan:tpot_missed:ratio5m", "further tokens, 5 min"),
                ("tunan:tpot_missed:ratio1h", "further tokens, 1 h"),
            ),
        ),
        one(
            "Answers by status",
            "reqps",
            "sum by (status) (rate(tunan_gateway_requests_total[5m]))",
            "{{status}}",
        ),
        one(
            "Tokens of answers",
            "short",
            "sum by (instance, replica) (rate(vllm:generation_tokens_total[5m]))",
            _REPLICA,
        ),
        one("Requests running", "short", "tunan_gateway_replica_in_flight", _REPLICA),
        one("Requests waiting at the gateway", "short", "tunan_gateway_queue_length", _GATEWAY),
        one(
            "Time between two writes to a client, 99 %",
            "s",
            "histogram_quantile(0.99, "
            "sum by (instance, le) (rate(tunan_gateway_itl_seconds_bucket[5m])))",
            _GATEWAY,
        ),
        one(
            "Tokens by API key",
            "short",
            "sum by (key) (rate(tunan_gateway_tokens_total[5m]))",
            "{{key}}",
        ),
        one(
            "Requests refused by the gateway",
            "reqps",
            "sum by (reason) (rate(tunan_gateway_refused_total[5m]))",
            "{{reason}}",
        ),
    ),
)

NPUS = Dashboard(
    "tunan-npus",
    "Tunan: NPUs",
    (
        one("Healthy (1: yes)", "short", "npu_chip_info_health_status", _NPU),
        one("AI cores", "percent", "npu_chip_info_utilization", _NPU),
        one("HBM in use", "percentunit", "tunan:hbm:used_ratio", _NPU),
        one("Temperature", "celsius", "npu_chip_info_temperature", _NPU),
        one("Power", "watt", "npu_chip_info_power", _NPU),
        one("Network port up (1: yes)", "short", "npu_chip_info_link_status", _NPU),
        Panel(
            "Memory errors in an hour",
            "short",
            (
                ("increase(npu_chip_info_hbm_ecc_single_bit_error_cnt[1h])", f"{_NPU} corrected"),
                ("increase(npu_chip_info_hbm_ecc_double_bit_error_cnt[1h])", f"{_NPU} lost"),
            ),
        ),
        one("Processes", "short", "npu_chip_info_process_info_num", _NPU),
        Panel(
            "NPUs seen and gone",
            "short",
            (
                ("machine_npu_nums", "{{instance}} seen"),
                ("sum by (instance) (tunan_monitor_npu_missing)", "{{instance}} gone"),
            ),
        ),
        Panel(
            "Reading them",
            "s",
            (
                ("tunan_monitor_read_seconds", "{{instance}} takes"),
                ("time() - tunan_monitor_read_at_seconds", "{{instance}} age"),
            ),
        ),
    ),
)

FAILOVERS = Dashboard(
    "tunan-failovers",
    "Tunan: failovers",
    (
        one("Replica ready (1: yes)", "short", "tunan_gateway_replica_ready", _REPLICA),
        one(
            "Requests that lost their replica, in ten minutes",
            "short",
            "tunan:losses:increase10m",
            _REPLICA,
        ),
        one(
            "Why",
            "short",
            "sum by (replica, reason) (tunan_gateway_losses_total)",
            "{{replica}} {{reason}}",
        ),
        Panel(
            "Streams that went on and that ended, in ten minutes",
            "short",
            (
                ("increase(tunan_gateway_resumed_streams_total[10m])", f"{_GATEWAY} went on"),
                ("increase(tunan_gateway_broken_streams_total[10m])", f"{_GATEWAY} ended"),
            ),
        ),
        one(
            "Pause that clients saw, 95 %",
            "s",
            "histogram_quantile(0.95, "
            "sum by (instance, le) (rate(tunan_gateway_stall_seconds_bucket[10m])))",
            _GATEWAY,
        ),
        one(
            "Tokens read again to go on",
            "short",
            "rate(tunan_gateway_reprefilled_tokens_total[5m])",
            _GATEWAY,
        ),
    ),
)

CAPACITY = Dashboard(
    "tunan-capacity",
    "Tunan: capacity",
    (
        one("KV cache in use", "percentunit", "vllm:kv_cache_usage_perc", _REPLICA),
        one("Requests running in the engine", "short", "vllm:num_requests_running", _REPLICA),
        one("Requests waiting in the engine", "short", "vllm:num_requests_waiting", _REPLICA),
        one(
            "Preemptions for each finished request",
            "short",
            "tunan:preemptions:per_request10m",
            _REPLICA,
        ),
        one(
            "Prompt tokens found in the prefix cache",
            "percentunit",
            "rate(vllm:prefix_cache_hits_total[5m]) / rate(vllm:prefix_cache_queries_total[5m])",
            _REPLICA,
        ),
        one("Prompt tokens", "short", "rate(vllm:prompt_tokens_total[5m])", _REPLICA),
        one(
            "Wait at the gateway, 95 %",
            "s",
            "histogram_quantile(0.95, "
            "sum by (instance, le) (rate(tunan_gateway_queue_seconds_bucket[5m])))",
            _GATEWAY,
        ),
        one("Tokens owed", "short", "tunan_gateway_replica_outstanding_tokens", _REPLICA),
        Panel(
            "Memory of the host",
            "bytes",
            (
                ("tunan_host_memory_total_bytes", "{{instance}} all"),
                ("tunan_host_memory_available_bytes", "{{instance}} free"),
            ),
        ),
        one("Load of the host", "short", "tunan_host_load1", "{{instance}}"),
    ),
)

ALL = (SERVICE, NPUS, FAILOVERS, CAPACITY)


def text_of(dashboard: Dashboard) -> str:
    """The file's content."""
    content = {
        "uid": dashboard.name,
        "title": dashboard.title,
        "tags": ["tunan"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "source",
                    "label": "Prometheus",
                    "type": "datasource",
                    "query": "prometheus",
                }
            ]
        },
        "panels": [_panel(place, panel) for place, panel in enumerate(dashboard.panels)],
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _panel(place: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(place, COLUMNS)
    return {
        "id": place + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + n), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
            for n, (expr, legend) in enumerate(panel.targets)
        ],
    }


def main() -> None:
    """Writes all files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for dashboard in ALL:
        (FOLDER / f"{dashboard.name}.json").write_text(text_of(dashboard), encoding="utf-8")


if __name__ == "__main__":
    main()
