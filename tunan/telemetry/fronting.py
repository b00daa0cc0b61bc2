"""This machine's metrics and those of other programs as one page."""

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tunan.telemetry.page import labelled, merged
from tunan.telemetry.scraper import Page

Pages = Callable[[], list[Page]]
Say = Callable[[str], None]


class Fronting(Collector):
    """What `own` tells, and, with the label `instance`, what stands on `pages`.

    Which pages are there is a metric too; why one is not is told to `say`, once.
    """

    def __init__(self, own: Collector, pages: Pages, say: Say) -> None:
        self._own = own
        self._pages = pages
        self._say = say
        self._problems: dict[str, str] = {}

    def collect(self) -> Iterator[Metric]:
        """Asks all of them, and merges families of one name."""
        pages = self._pages()
        for page in pages:
            self._tell(page)
        families = [*self._own.collect(), *_of_pages(pages)]
        for page in pages:
            families += [labelled(family, page.target.instance) for family in page.families]
        return merged(families)

    def _tell(self, page: Page) -> None:
        name = page.target.instance
        before = self._problems.get(name, "")
        self._problems[name] = page.problem
        if page.problem and not before:
            self._say(f"{page.target.url}: {page.problem}")
        elif before and not page.problem:
            self._say(f"{page.target.url}: is back")


def _of_pages(pages: list[Page]) -> Iterator[Metric]:
    prefix = "tunan_monitor_target"
    up = GaugeMetricFamily(f"{prefix}_up", "1: its metrics are shown here", labels=("target",))
    took = GaugeMetricFamily(f"{prefix}_seconds", "How long it took", labels=("target",))
    for page in pages:
        up.add_metric([page.target.instance], float(not page.problem))
        took.add_metric([page.target.instance], page.seconds)
    yield up
    yield took
