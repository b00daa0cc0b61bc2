"""Connections to the replicas: one pool each, over a Unix socket or TCP."""

import errno
import ssl
from collections.abc import Iterable
from typing import Self

import aiohttp
from yarl import URL

from tunan.gateway.replica import HttpAddress, Replica, UnixAddress
from tunan.gateway.responses import Headers, Scope

CONNECT_S = 2.0
# Shorter than the 5 s after which vLLM's server closes an idle connection: one that is closed
# while a request is on its way looks like a dead replica.
KEEP_ALIVE_S = 3.0
UNIX_HOST = "http://replica"
# RFC 9110, section 7.6.1: these belong to one connection, not to the message.
HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade".split()
)
REQUEST_ID = b"x-request-id"
LOST = (aiohttp.ClientError, OSError)
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL})


class ExhaustedError(Exception):
    """This process has no file, port or memory for a connection: no fault of the replica."""


class Upstreams:
    """Sends requests to replicas, and to nothing else: an address is never taken from a request."""

    def __init__(self, replicas: Iterable[Replica], tls: ssl.SSLContext | None = None) -> None:
        self._replicas = tuple(replicas)
        self._tls = tls
        self._sessions: dict[Replica, aiohttp.ClientSession] = {}

    async def __aenter__(self) -> Self:
        """Opens the pools. No limit: the gateway's queue is the limit."""
        for replica in self._replicas:
            self._sessions[replica] = aiohttp.ClientSession(
                connector=self._connector(replica),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes them."""
        for session in self._sessions.values():
            await session.close()

    async def request(
        self,
        replica: Replica,
        method: str,
        target: str,
        headers: Headers | None = None,
        body: bytes = b"",
    ) -> aiohttp.ClientResponse:
        """The response's head; `target` is the encoded path with its query.

        Raises one of `LOST` if the replica is not there or closes the connection first,
        `ExhaustedError` if it could not be asked.
        """
        given = [(_text(key), _text(value)) for key, value in headers or []]
        try:
            return await self._sessions[replica].request(
                method,
                URL(_base(replica) + target, encoded=True),
                headers=given,
                data=body or None,
                allow_redirects=False,
            )
        except aiohttp.ClientConnectorError as error:
            if error.os_error.errno in _OURS:
                raise ExhaustedError(error.os_error.strerror) from None
            raise

    def _connector(self, replica: Replica) -> aiohttp.BaseConnector:
        if isinstance(replica.address, UnixAddress):
            return aiohttp.UnixConnector(
                str(replica.address.path), limit=0, keepalive_timeout=KEEP_ALIVE_S
            )
        return aiohttp.TCPConnector(
            limit=0, keepalive_timeout=KEEP_ALIVE_S, ssl=self._tls if self._tls else True
        )


def reason_of(error: Exception) -> str:
    """Why a replica could not be asked, one of `LOST` or a time-out, in words."""
    if isinstance(error, TimeoutError):
        return "it does not answer in time"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        found = error.certificate_error
        why = found.verify_message if isinstance(found, ssl.SSLCertVerificationError) else found
        return f"its certificate is not accepted: {str(why).rstrip('.')}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "it closes the connection"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the connection broke off in the middle of an answer"
    if isinstance(broken := getattr(error, "os_error", error), ssl.SSLError):
        return f"TLS with it fails: {(broken.reason or str(broken)).replace('_', ' ').lower()}"
    if isinstance(broken, ConnectionRefusedError):
        return "nothing listens there"
    return (broken.strerror if isinstance(broken, OSError) else "") or type(error).__name__


def _text(value: bytes) -> str:
    """aiohttp writes it as UTF-8: only what is not UTF-8 comes to be other bytes."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _base(replica: Replica) -> str:
    address = replica.address
    return address.url.rstrip("/") if isinstance(address, HttpAddress) else UNIX_HOST


def end_to_end(headers: Headers) -> Headers:
    """`headers` without those of one connection."""
    listed = {
        name.strip().lower()
        for key, value in headers
        if key.lower() == b"connection"
        for name in value.split(b",")
    }
    dropped = HOP_BY_HOP | listed
    return [(key, value) for key, value in headers if key.lower() not in dropped]


def request_headers(scope: Scope, request_id: str) -> Headers:
    """As the client sent them, but the length is that of the body as read here."""
    dropped = (b"host", b"content-length", b"expect", REQUEST_ID)
    headers = end_to_end(list(scope["headers"]))
    kept = [(key, value) for key, value in headers if key not in dropped]
    return [*kept, (REQUEST_ID, request_id.encode("ascii"))]


def with_request_id(headers: Headers, suffix: str) -> Headers:
    """`headers` with another id for the request, of which the engine knows the first already."""
    return [(k, v + suffix.encode() if k == REQUEST_ID else v) for k, v in headers]
