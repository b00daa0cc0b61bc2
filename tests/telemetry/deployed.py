"""The files in deploy/ and the programs that read them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
RULES = (PROMETHEUS / "recording.rules.yml", PROMETHEUS / "alerts.rules.yml")


def program(name: str) -> str:
    """Where it is; without it the test fails, because a rule that nobody tried is not tested."""
    found = shutil.which(name)
    if found is None:
        pytest.fail(f"{name} is missing: apt-get install prometheus (it brings promtool too)")
    return found


def rules() -> list[dict[str, Any]]:
    """All recording rules and alerts."""
    files = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in RULES]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    """The alerts by name."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def dashboards() -> dict[str, dict[str, Any]]:
    """Grafana's dashboards by the file's name."""
    files = (DEPLOY / "grafana").glob("*.json")
    return {file.name: json.loads(file.read_text(encoding="utf-8")) for file in files}


def panel_expressions() -> dict[str, str]:
    """Where each expression of the dashboards is, and the expression."""
    return {
        f"{name}: {panel['title']} {target['refId']}": target["expr"]
        for name, dashboard in dashboards().items()
        for panel in dashboard["panels"]
        for target in panel["targets"]
    }
