"""The exporter: `/metrics` over HTTP."""

import errno
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server

from tunan.ascend.probes.npus import look_at_npus
from tunan.ascend.probes.sight import this_machine
from tunan.errors import OutsideError, TunanError, UsageError
from tunan.telemetry.ecc import look_at_ecc_counts
from tunan.telemetry.host_metrics import HostCollector
from tunan.telemetry.links import look_at_links
from tunan.telemetry.npu_metrics import NpuCollector
from tunan.telemetry.reading import Reader
from tunan.telemetry.targets import Asking

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication

Say = Callable[[str], None]


def registry_of(reader: Reader) -> CollectorRegistry:
    """All metrics of this machine, with `reader`'s NPUs."""
    registry = CollectorRegistry()
    registry.register(NpuCollector(reader))
    registry.register(HostCollector(this_machine))
    return registry


@contextmanager
def exporting(
    host: str, port: int, interval: float, asking: Asking | None = None, say: Say = print
) -> Iterator[tuple[int, Reader]]:
    """Serves `/metrics` while the block runs; yields the port (another than 0) and the reader.

    With `asking` the metrics of its targets are there too; `say` is told which ones are not.
    Raises `OutsideError` if the port is taken or `host` is none of this machine, `UsageError` if
    it is no address at all.
    """
    reader = Reader(
        lambda: look_at_npus(this_machine()),
        interval,
        lambda count: look_at_links(this_machine(), count),
        lambda report: look_at_ecc_counts(this_machine(), report),
    )
    registry = registry_of(reader)
    with ExitStack() as stack:
        if asking is not None and asking.targets:
            registry = stack.enter_context(_with_others(registry, asking, say))
        try:
            server, thread = start_http_server(port, addr=host, registry=registry)
        except (OSError, UnicodeError) as error:
            raise _refused(host, port, error) from None
        server.set_app(_app(make_wsgi_app(registry)))
        reader.start()
        try:
            yield server.server_port, reader
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
            reader.stop()


# `/`: by hand; the icon: prometheus_client has an empty answer for browsers.
_PATHS = ("/metrics", "/", "/favicon.ico")


def _app(app: "WSGIApplication") -> "WSGIApplication":
    """`app` at its own path alone, where prometheus_client takes any, and as plain text for askers
    that prefer OpenMetrics too: prometheus_client 0.26 writes `vllm:x` as `vllm_x` in it."""

    def plain(environment: dict[str, Any], start: "StartResponse") -> Iterable[bytes]:
        if environment["PATH_INFO"] not in _PATHS:
            start("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
            return [b"the metrics are at /metrics\n"]
        return app({**environment, "HTTP_ACCEPT": "text/plain"}, start)

    return plain


@contextmanager
def _with_others(own: CollectorRegistry, asking: Asking, say: Say) -> Iterator[CollectorRegistry]:
    # Imported here: an HTTP client takes longer to load than all the rest.
    from tunan.telemetry.fronting import Fronting
    from tunan.telemetry.scraper import Scraper

    with Scraper(asking) as scraper:
        registry = CollectorRegistry()
        registry.register(Fronting(own, scraper.pages, say))
        yield registry


def _refused(host: str, port: int, error: OSError | UnicodeError) -> TunanError:
    if isinstance(error, socket.gaierror | UnicodeError):  # UnicodeError: no name at all
        return UsageError(f"{host!r:.80}: cannot find the address; choose another with --host")
    option = "--host" if error.errno == errno.EADDRNOTAVAIL else "--port"
    return OutsideError(f"{host}:{port}: {error.strerror}; choose another with {option}")
