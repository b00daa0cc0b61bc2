"""Whose metrics `tunan monitor` shows beside its own, and how it asks for them."""

import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tunan.config.deployment import Deployment, Gateway
from tunan.config.monitor import Monitor
from tunan.errors import UsageError

_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # listened at, not asked
MOST_OF_A_KEY_FILE = 64 * 1024  # bytes


@dataclass(frozen=True)
class Target:
    """A page of metrics."""

    url: str

    @property
    def instance(self) -> str:
        """`HOST:PORT`, as Prometheus names a target, with the path where it is no usual one."""
        parts = urlsplit(self.url)
        usual = parts.path == "/metrics" and not parts.query
        return parts.netloc if usual else parts._replace(scheme="").geturl().removeprefix("//")


@dataclass(frozen=True)
class Asking:
    """Which pages, how many seconds all of them together may take, and what they are shown."""

    targets: tuple[Target, ...] = ()
    timeout_s: float = Monitor().scrape_timeout_s
    key: str = ""
    tls: ssl.SSLContext | None = None


def asking_of(monitor: Monitor, deployment: Deployment | None) -> Asking:
    """What the settings ask for; where they name no page it is that of the deployment's gateway, on
    which those of its replicas are too, and its own key opens it.

    Of several machines the first one has the gateway. Raises `UsageError`, without ever quoting a
    key.
    """
    named, key = monitor.scrape, ""
    if named is None:
        named = ()
        if deployment is not None and deployment.gateway.port and _is_head(deployment.nodes):
            named = (gateway_page(deployment.gateway),)
            key = _first_plain_key(deployment.gateway.api_keys_file)
    return Asking(
        tuple(Target(url) for url in dict.fromkeys(named)),
        monitor.scrape_timeout_s,
        _key_of(monitor.scrape_key_file) if monitor.scrape_key_file else key,
        _tls_of(monitor.scrape_ca_file, named),
    )


def _is_head(nodes: Sequence[str]) -> bool:
    """Whether this is the first of `nodes`, or the only one."""
    if len(nodes) < 2:
        return True
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            nodes[0], 0, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as own:
            own.bind(address)  # which only an address of this machine allows
    except (OSError, UnicodeError):
        return False
    return True


def gateway_page(gateway: Gateway) -> str:
    """Where a gateway with these settings shows its metrics, to this machine."""
    host = _ANYWHERE.get(gateway.host, gateway.host)
    scheme = "https" if gateway.tls_cert_file else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{gateway.port}/metrics"


def _key_of(file: Path) -> str:
    try:
        key = _first_line(file)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not ASCII text"
        raise UsageError(f"{file}: cannot read the API key: {reason}") from None
    if not _is_plain(key):
        raise UsageError(f"{file}: its first line must be an API key itself, not a digest of one")
    return key


def _first_plain_key(file: Path | None) -> str:
    """Empty where there is none: then the page itself says that it wants one."""
    try:
        key = _first_line(file) if file else ""
    except (OSError, UnicodeDecodeError):
        return ""
    return key if _is_plain(key) else ""


def _first_line(file: Path) -> str:
    with file.open("rb") as opened:
        lines = opened.read(MOST_OF_A_KEY_FILE).decode("ascii").splitlines()
    return next((w for line in lines if (w := line.strip()) and not w.startswith("#")), "")


def _is_plain(key: str) -> bool:
    return bool(key) and key.isprintable() and not key.lower().startswith("sha256:")


def _tls_of(file: Path | None, urls: Sequence[str]) -> ssl.SSLContext | None:
    if not any(url.startswith("https:") for url in urls):
        return None
    try:
        return ssl.create_default_context(cafile=file)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"monitor.scrape_ca_file: {file}: {error.strerror or error}") from None
