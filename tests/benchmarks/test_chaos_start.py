"""A service of the chaos benchmark that does not come up is said at once, in one line."""

import sys
from pathlib import Path

import pytest

from benchmarks.chaos import not_converted
from benchmarks.chaos_service import Service, ServiceError, free_port, running, serving


def test_a_model_that_is_not_converted_is_said_before_anything_starts(tmp_path: Path) -> None:
    said = not_converted(tmp_path / "none")
    assert "no checkpoint" in said
    assert "make run" in said
    (tmp_path / "config.json").write_text("{}")
    assert not_converted(tmp_path) == ""


async def test_a_process_that_ends_before_it_is_ready_is_not_waited_for(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "import sys; print('the reason\\n'); sys.exit(3)"]
    with running(words, tmp_path, "child") as child:
        child.process.wait()
        waiting = Service(f"http://127.0.0.1:{free_port()}", (), folder=tmp_path, children=[child])
        with pytest.raises(ServiceError, match="child ended with status 3: the reason"):
            await waiting.until_ready()


async def test_a_refusal_of_tunan_serve_is_the_line_that_is_said(tmp_path: Path) -> None:
    port = free_port()
    with serving(tmp_path / "none", "float32", tmp_path, port, {"count": 1}) as child:
        child.process.wait()
        service = Service(f"http://127.0.0.1:{port}", (port,), folder=tmp_path, children=[child])
        with pytest.raises(ServiceError, match=f"serve-{port} ended with status 2: .*checkpoint"):
            await service.until_ready()
