"""What stands on a page of metrics, and several pages as one."""

from collections.abc import Iterable, Iterator

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as of_openmetrics
from prometheus_client.parser import text_string_to_metric_families as of_text
from prometheus_client.samples import Sample

OPENMETRICS = "application/openmetrics-text"
_SUFFIX = {"counter": "_total", "info": "_info"}  # with which the text format names a family


class PageError(Exception):
    """What came is no page of metrics."""


def parsed(content: bytes, content_type: str) -> list[Metric]:
    """The families of a page in Prometheus' text format or in OpenMetrics. Raises `PageError`."""
    parse = of_openmetrics if content_type == OPENMETRICS else of_text
    try:
        return list(parse(content.decode("utf-8")))
    except Exception as error:  # the library promises no kind of error for what is no such page
        raise PageError("shows no metrics that can be read") from error


def labelled(family: Metric, instance: str) -> Metric:
    """`family` with the label `instance`, as Prometheus gives it to what it scrapes itself.

    Time stamps are left out (what is shown is as old as the scrape), and so are the times of
    creation, which OpenMetrics alone has and the text format would show as a family more.
    """
    copy = Metric(family.name, family.documentation, family.type)
    copy.samples = [
        Sample(sample.name, _labels(sample, instance), sample.value)
        for sample in family.samples
        if sample.name != f"{family.name}_created" or family.type == "gauge"
    ]
    return copy


def _labels(sample: Sample, instance: str) -> dict[str, str]:
    labels = dict(sample.labels)
    if "instance" in labels:
        labels["exported_instance"] = labels.pop("instance")
    return labels | {"instance": instance}


def merged(families: Iterable[Metric]) -> Iterator[Metric]:
    """Families of one name as one: the format allows a name once, with one type.

    The first one's text stays; of different types nothing is left but the samples.
    """
    by_name: dict[str, Metric] = {}
    for family in families:
        name = family.name + _SUFFIX.get(family.type, "")
        whole = by_name.get(name)
        if whole is None:
            by_name[name] = copy = Metric(family.name, family.documentation, family.type)
            copy.samples = list(family.samples)
            continue
        if whole.type != family.type:
            by_name[name] = whole = _untyped(name, whole)
        whole.samples.extend(family.samples)
    return iter(by_name.values())


def _untyped(name: str, family: Metric) -> Metric:
    plain = Metric(name, family.documentation, "untyped")
    plain.samples = family.samples
    return plain
