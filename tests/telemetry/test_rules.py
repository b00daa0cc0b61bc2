"""Prometheus' rules: Prometheus takes them, every alert fires and stays silent when it should."""

import importlib.util
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.telemetry.deployed import (
    PROMETHEUS,
    RULES,
    alerts,
    panel_expressions,
    program,
    rules,
)
from tests.telemetry.fake_vllm_metrics import COUNTERS, GAUGES, SUCCESS, TPOT, TPOT_BUCKETS

ROOT = PROMETHEUS.parents[1]
CASES = sorted((PROMETHEUS / "tests").glob("*.test.yml"))
VLLM_NAMES = {*GAUGES, *COUNTERS, SUCCESS, TPOT}


def promtool(*arguments: str | Path) -> None:
    ran = subprocess.run(
        [program("promtool"), *arguments], capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_prometheus_takes_the_configuration_and_the_rules() -> None:
    promtool("check", "config", "--lint-fatal", PROMETHEUS / "prometheus.yml")
    promtool("check", "rules", "--lint-fatal", *RULES)


@pytest.mark.parametrize("cases", CASES, ids=lambda file: file.name)
def test_alerts_fire_when_they_should_and_only_then(cases: Path) -> None:
    promtool("test", "rules", cases)


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    fires, silent = set[str](), set[str]()
    for file in CASES:
        for case in yaml.safe_load(file.read_text(encoding="utf-8"))["tests"]:
            checks = case["alert_rule_test"]
            names = {check["alertname"] for check in checks}
            (fires if any(check["exp_alerts"] for check in checks) else silent).update(names)
    assert fires == silent == set(alerts())


@pytest.mark.parametrize("name", alerts())
def test_an_alert_says_what_is_wrong_and_where_to_read_on(name: str) -> None:
    alert: dict[str, Any] = alerts()[name]
    assert alert["labels"]["severity"] in ("critical", "warning")
    assert set(alert["annotations"]) == {"summary", "description", "runbook"}
    page, _, anchor = alert["annotations"]["runbook"].partition("#")
    assert anchor == name.lower()
    assert page == "docs/en/alerts.md"


def test_the_runbook_has_a_heading_for_each_alert_in_their_order() -> None:
    for language in ("en", "zh"):
        text = (ROOT / f"docs/{language}/alerts.md").read_text(encoding="utf-8")
        assert re.findall(r"(?m)^### (\w+)$", text) == list(alerts())


def test_vllm_has_the_metrics_that_are_asked_for() -> None:
    spec = importlib.util.find_spec("vllm")
    assert spec
    assert spec.submodule_search_locations
    metrics = Path(spec.submodule_search_locations[0]) / "v1/metrics"
    names = set(re.findall(r'"(vllm:\w+)"', (metrics / "loggers.py").read_text(encoding="utf-8")))
    text = "\n".join([*(rule["expr"] for rule in rules()), *panel_expressions().values()])
    asked = {re.sub("_(total|bucket|count)$", "", name) for name in re.findall(r"vllm:\w+", text)}
    assert asked == VLLM_NAMES
    assert names >= VLLM_NAMES
    # A bucket that the engine does not have would make the objective's share empty.
    buckets = (metrics / "buckets.py").read_text(encoding="utf-8")
    listed = re.search(
        r"^INTER_TOKEN_LATENCY_BUCKETS.*?\((.*?)\)", buckets, re.DOTALL | re.MULTILINE
    )
    assert listed
    assert {float(bound) for bound in re.findall(r"[\d.]+", listed[1])} >= set(TPOT_BUCKETS)
