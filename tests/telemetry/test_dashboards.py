"""Grafana's dashboards: what the generator writes, in a form that Grafana takes."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.telemetry.deployed import DEPLOY, dashboards

ROOT = Path(__file__).parents[2]


def test_the_files_are_those_that_the_generator_writes() -> None:
    """If not: `python scripts/dashboards.py`."""
    generator = runpy.run_path(str(ROOT / "scripts/dashboards.py"))
    written = {f"{d.name}.json": generator["text_of"](d) for d in generator["ALL"]}
    here = {file.name: file.read_text("utf-8") for file in (DEPLOY / "grafana").glob("*.json")}
    assert here == written


def test_there_is_one_each_for_service_npus_failovers_and_capacity() -> None:
    names = ("capacity", "failovers", "npus", "service")
    assert sorted(dashboards()) == [f"tunan-{name}.json" for name in names]
    assert len({dashboard["uid"] for dashboard in dashboards().values()}) == 4


@pytest.mark.parametrize("name", dashboards())
def test_panels_have_their_own_place_and_ask_the_chosen_prometheus(name: str) -> None:
    dashboard = dashboards()[name]
    (variable,) = dashboard["templating"]["list"]
    assert (variable["type"], variable["query"]) == ("datasource", "prometheus")
    panels: list[dict[str, Any]] = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)
    for panel in panels:
        assert panel["title"]
        for target in (panel, *panel["targets"]):
            assert target["datasource"]["uid"] == f"${{{variable['name']}}}"
