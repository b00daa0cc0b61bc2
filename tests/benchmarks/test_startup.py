"""Where the time of a start went."""

from pathlib import Path

import pytest

from benchmarks.servers import Running
from benchmarks.startup import STEPS, breakdown, summary
from tunan.engine import timeline


def started(path: Path) -> Running:
    return Running("http://127.0.0.1:1", "model", 8.0, 8.25, 100.0, path)


def test_steps_add_up_to_the_first_token(tmp_path: Path) -> None:
    lines = ("101.0 0.1 7 process", "104.0 3.0 7 imports", "104.5 0.0 8 fork", "105.5 0.9 8 model")
    file = tmp_path / "timeline"
    file.write_text("\n".join(lines) + "\n")
    found = breakdown(started(file))
    assert found == {
        "steps": {
            "process": 1.0,
            "imports": 3.0,
            "fork": 0.5,
            "model": 1.0,
            "API, warm-up": 2.5,
            "first token": 0.25,
        },
        "cpu": {"imports": 2.9, "model": 0.9},
    }
    assert sum(found["steps"].values()) == 8.25


def test_a_server_that_writes_no_timeline_has_no_steps(tmp_path: Path) -> None:
    assert breakdown(started(tmp_path / "none")) == {}


def test_medians_of_steps_are_those_of_the_same_variant_and_caches() -> None:
    def run(variant: str, seconds: float) -> dict[str, object]:
        steps = {"imports": seconds}
        return {"variant": variant, "caches": "filled", "first_token_s": 9, "steps": steps}

    runs = [run("tunan", 1.0), run("tunan", 3.0), run("tunan", 4.0), run("other", 50.0)]
    assert summary(runs, "tunan", "filled")["steps_median_s"] == {"imports": 3.0}


def test_marks_are_what_the_benchmark_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeline.mark("imports")  # nobody asked: nothing is written
    file = tmp_path / "timeline"
    monkeypatch.setenv(timeline.VARIABLE, str(file))
    for step in STEPS:
        timeline.mark(step)
    found = breakdown(started(file))
    assert set(found["steps"]) == {*STEPS, "API, warm-up", "first token"}
    assert set(found["cpu"]) == set(list(STEPS)[1:])
