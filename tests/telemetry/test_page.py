"""Pages of metrics: read whatever stands on them, and made one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as as_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tunan.telemetry.page import OPENMETRICS, PageError, labelled, merged, parsed

TEXT = "text/plain"


def shown(*families: Metric) -> str:
    """The text format of `families`."""

    class Those:
        def collect(self) -> tuple[Metric, ...]:
            return families

    return generate_latest(Those()).decode()


def together(**pages: str) -> str:
    """The pages as one, each text's samples with the instance that it is given under."""
    families = [
        labelled(family, instance)
        for instance, text in pages.items()
        for family in parsed(text.encode(), TEXT)
    ]
    return shown(*merged(families))


def registry() -> CollectorRegistry:
    """A metric of each usual kind."""
    registry = CollectorRegistry()
    Counter("done", "a counter", ("who",), registry=registry).labels('a "b"\\\n图').inc(3)
    Gauge("now", "a gauge", registry=registry).set(float("nan"))
    Histogram("took", "a histogram", registry=registry, buckets=(1, 2)).observe(1.5)
    return registry


def test_the_samples_of_a_metric_stand_in_one_place_with_their_instance() -> None:
    text = "# HELP m what\n# TYPE m gauge\nm 1\n# TYPE n_total counter\nn_total 2\n"
    assert together(a=text, b=text).splitlines() == [
        "# HELP m what",
        "# TYPE m gauge",
        'm{instance="a"} 1.0',
        'm{instance="b"} 1.0',
        "# HELP n_total ",
        "# TYPE n_total counter",
        'n_total{instance="a"} 2.0',
        'n_total{instance="b"} 2.0',
    ]


def test_a_name_with_two_types_has_one_line_of_its_type() -> None:
    lines = together(a="# TYPE m gauge\nm 1\n", b="# TYPE m summary\nm_sum 2\n", c="m 3\n")
    assert lines.splitlines() == [
        "# HELP m ",
        "# TYPE m untyped",
        'm{instance="a"} 1.0',
        'm_sum{instance="b"} 2.0',
        'm{instance="c"} 3.0',
    ]


def test_a_counter_and_a_gauge_of_its_full_name_are_one() -> None:
    lines = together(a="# TYPE m_total counter\nm_total 1\n", b="# TYPE m_total gauge\nm_total 2\n")
    assert lines.splitlines()[1:] == [
        "# TYPE m_total untyped",
        'm_total{instance="a"} 1.0',
        'm_total{instance="b"} 2.0',
    ]


def test_an_instance_that_is_there_already_is_kept_under_prometheus_name_for_it() -> None:
    assert 'm{exported_instance="x",instance="a"} 1.0' in together(a='m{instance="x"} 1\n')


def test_time_stamps_are_left_out() -> None:
    assert 'm{instance="a"} 1.0\n' in together(a="m 1 1700000000000\n")


def test_both_formats_say_the_same() -> None:
    pages = {
        TEXT: generate_latest(registry()),
        OPENMETRICS: as_openmetrics(registry()),  # type: ignore[no-untyped-call]
    }
    texts = {
        kind: shown(*merged(labelled(family, "a") for family in parsed(page, kind)))
        for kind, page in pages.items()
    }
    without_creation = [line for line in texts[TEXT].splitlines() if "_created" not in line]
    assert texts[OPENMETRICS].splitlines() == without_creation
    assert 'done_total{instance="a",who="a \\"b\\"\\\\\\n图"} 3.0' in without_creation


@pytest.mark.parametrize(
    "content",
    [b"<html>", b"\xff\xfe", b"m{", b"# TYPE m no_type\nm 1", b"m one", b"\x00\x01"],
)
def test_what_is_no_page_of_metrics_is_one_line(content: bytes) -> None:
    with pytest.raises(PageError, match="no metrics that can be read"):
        parsed(content, TEXT)


def test_openmetrics_without_its_end_is_cut_and_none() -> None:
    with pytest.raises(PageError):
        parsed(b"# TYPE m gauge\nm 1\n", OPENMETRICS)


LINES = st.one_of(
    st.sampled_from(
        ["# TYPE m gauge", "# TYPE m counter", "# HELP m x", "m 1", 'm{a="b"} 2', "m_total 3",
         "# TYPE m histogram", 'm_bucket{le="1"} 1', "m_created 4", "m +Inf 1e99", '{"m.x"} 1',
         'm{"a.b"="c"} 1', 'm{instance="y"} 7', "# EOF", "m NaN -1"]
    ),
    st.text(max_size=20),
)  # fmt: skip


KINDS = st.sampled_from([TEXT, OPENMETRICS])


@settings(deadline=None, max_examples=300)
@given(
    st.lists(LINES, max_size=8), st.lists(LINES, max_size=8), st.sampled_from([TEXT, OPENMETRICS])
)
def test_whatever_stands_there_the_whole_can_be_read(
    first: list[str], second: list[str], kind: str
) -> None:
    families = []
    for instance, lines in (("a", first), ("b", second)):
        try:
            page = parsed("\n".join(lines).encode(), kind)
        except PageError:
            continue
        families += [labelled(family, instance) for family in page]
    whole = list(merged(families))
    text = shown(*whole)
    types = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")]
    assert len(types) == len(set(types))
    assert len(list(text_string_to_metric_families(text))) >= len(whole)
