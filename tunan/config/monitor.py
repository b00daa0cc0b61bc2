"""What `tunan monitor` listens on, how often it reads, whose metrics it shows beside its own."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from tunan.config.section import FilePath, Port, Section


def metrics_page(url: str) -> str:
    """The address of a page of metrics: `url`, with `/metrics` where it has no path.

    Raises `ValueError` if it is no address that may be asked: a password in it would be shown.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), 0
    odd = not url.isascii() or not url.isprintable() or " " in url or "\\" in url
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or odd:
        raise ValueError("must be http://HOST:PORT or https://HOST:PORT, with a path or without")
    if "@" in parts.netloc or parts.fragment:
        raise ValueError("must have no user, password or fragment in it")
    return parts._replace(path=parts.path.rstrip("/") or "/metrics").geturl()


MetricsPage = Annotated[str, AfterValidator(metrics_page)]


class Monitor(Section):
    """The exporter of `tunan monitor --config`."""

    port: Port = Field(default=8000, description="Port to listen on; 0: any free one")
    interval_s: float = Field(
        default=5, gt=0, le=86400, strict=False, description="Time between two readings of the NPUs"
    )
    scrape: tuple[MetricsPage, ...] | None = Field(
        default=None,
        strict=False,
        description="Pages of metrics that are shown beside its own; unset: the gateway's",
    )
    scrape_timeout_s: float = Field(
        default=4, gt=0, le=600, strict=False, description="How long all of them together may take"
    )
    scrape_key_file: FilePath | None = Field(
        default=None,
        description="File with the key that all of them are shown; unset: the gateway its own",
    )
    scrape_ca_file: FilePath | None = Field(
        default=None, description="Authorities that pages at https:// are checked against"
    )
