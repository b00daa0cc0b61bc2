"""The exporter: `/metrics` over HTTP."""

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server

from tunan.ascend.probes.npus import look_at_npus
from tunan.ascend.probes.sight import this_machine
from tunan.errors import OutsideError, TunanError, UsageError
from tunan.telemetry.host_metrics import HostCollector
from tunan.telemetry.links import look_at_links
from tunan.telemetry.npu_metrics import NpuCollector
from tunan.telemetry.reading import Reader


def registry_of(reader: Reader) -> CollectorRegistry:
    """All metrics of this machine, with `reader`'s NPUs."""
    registry = CollectorRegistry()
    registry.register(NpuCollector(reader))
    registry.register(HostCollector(this_machine))
    return registry


@contextmanager
def exporting(host: str, port: int, interval: float) -> Iterator[tuple[int, Reader]]:
    """Serves `/metrics` while the block runs; yields the port (another than 0) and the reader.

    Raises `OutsideError` if the port is taken or `host` is none of this machine, `UsageError` if
    it is no address at all.
    """
    reader = Reader(
        lambda: look_at_npus(this_machine()),
        interval,
        lambda count: look_at_links(this_machine(), count),
    )
    try:
        server, thread = start_http_server(port, addr=host, registry=registry_of(reader))
    except (OSError, UnicodeError) as error:
        raise _refused(host, port, error) from None
    reader.start()
    try:
        yield server.server_port, reader
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        reader.stop()


def _refused(host: str, port: int, error: OSError | UnicodeError) -> TunanError:
    if isinstance(error, socket.gaierror | UnicodeError):  # UnicodeError: no name at all
        return UsageError(f"{host!r:.80}: cannot find the address; choose another with --host")
    option = "--host" if error.errno == errno.EADDRNOTAVAIL else "--port"
    return OutsideError(f"{host}:{port}: {error.strerror}; choose another with {option}")
