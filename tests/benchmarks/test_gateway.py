"""The gateway benchmark's own parts: its fake engine, its client and its sums."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.gateway import dechunked, hear, running, summary
from benchmarks.gateway_subjects import Subject, subjects


def test_chunks_that_end_within_an_event_are_put_together() -> None:
    whole = b"HTTP/1.1 200 OK\r\na: b\r\n\r\n5\r\ndata:\r\n4\r\n {}\n\r\n0\r\n\r\n"
    for cut in range(len(whole)):
        raw = bytearray(whole[:cut])
        first = dechunked(raw)
        raw += whole[cut:]
        assert first + dechunked(raw) == b"data: {}\n"


def test_every_event_of_the_fake_engine_is_heard_with_its_delay() -> None:
    with running(Subject("direct", None), 1.0) as (port, process):
        heard = asyncio.run(hear(port, 4, 10))
    assert process is None
    assert (heard.events, len(heard.firsts), len(heard.delays)) == (40, 4, 40)
    assert min(heard.delays) > 0


def test_the_gateway_passes_every_event_on() -> None:
    tunan = next(one for one in subjects(None, None) if one.name == "tunan")
    with running(tunan, 0.0) as (port, process):
        heard = asyncio.run(hear(port, 4, 10))
        assert process is not None
    assert heard.events == 40


def test_gateways_that_are_not_named_are_not_compared(tmp_path: Path) -> None:
    assert [one.name for one in subjects(None, None)] == ["direct", "tunan", "tunan, no resume"]
    nginx = subjects("/r", "/n")[-1]
    assert nginx.command is not None
    words = nginx.command(1, [2, 3], tmp_path)
    assert "server 127.0.0.1:3;" in Path(words[2]).read_text()


def test_added_values_are_less_those_of_direct_access() -> None:
    runs = [
        {"subject": subject, "round": number, "delay_p50_ms": value}
        for subject, values in {"direct": (1.0, 2.0, 9.0), "tunan": (2.5, 3.0, 3.5)}.items()
        for number, value in enumerate(values)
    ]
    assert summary(runs)["tunan"] == {
        "delay_p50_ms": pytest.approx(3.0),
        "added_delay_p50_ms": pytest.approx(1.0),
    }
