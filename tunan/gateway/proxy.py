"""Hands a request to a replica and its answer back, as it comes and unread.

The body of a request is taken whole first (up to a limit), so that a slow or broken sender
never holds an engine; the answer is passed on chunk by chunk.
"""

import asyncio
import contextlib
import json
from typing import Self

import aiohttp
from yarl import URL

from tunan.gateway.replica import Replica, Stage
from tunan.gateway.responses import (
    Headers,
    Receive,
    Scope,
    Send,
    error_body,
    send_error,
    send_not_ready,
)

# RFC 9110, section 7.6.1: these belong to one connection, not to the message.
HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade".split()
)
UPSTREAM_HOST = "replica"


class BodyTooLargeError(Exception):
    """The request's body is larger than allowed."""


class ClientGoneError(Exception):
    """The client closed its connection."""


class Proxy:
    """Forwards requests over one pool of connections to a replica's Unix socket."""

    def __init__(self, replica: Replica, max_body_bytes: int) -> None:
        self._replica = replica
        self._max_body_bytes = max_body_bytes

    async def __aenter__(self) -> Self:
        """Opens the pool. No limit: the engine queues, and a queue here would hide it."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(self._replica.socket), limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes the pool."""
        await self._session.close()

    async def forward(self, replica: Replica, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request from `replica`."""
        try:
            body = await self._body(scope, receive)
        except ClientGoneError:
            return
        except BodyTooLargeError:
            limit = f"{self._max_body_bytes / (1 << 20):g} MiB"
            close = [(b"connection", b"close")]
            await send_error(
                send, 413, "request_too_large", f"the body is larger than {limit}", close
            )
            return
        if not replica.ready:  # it may have begun to drain while the body came in
            await send_not_ready(send, replica)
            return
        with replica.answering():
            await self._relay_until_gone(replica, scope, body, receive, send)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._max_body_bytes:
            raise BodyTooLargeError
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._max_body_bytes:
                raise BodyTooLargeError
            if not message.get("more_body", False):
                return b"".join(parts)

    async def _relay_until_gone(
        self, replica: Replica, scope: Scope, body: bytes, receive: Receive, send: Send
    ) -> None:
        """Relays; a client that goes away closes the upstream request, which frees its slot."""
        relay = asyncio.create_task(self._relay(replica, scope, body, send))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({relay, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not relay.done():
                relay.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await relay

    async def _relay(self, replica: Replica, scope: Scope, body: bytes, send: Send) -> None:
        url = URL.build(
            scheme="http",
            host=UPSTREAM_HOST,
            path=scope["raw_path"].decode("ascii"),
            query_string=scope["query_string"].decode("ascii"),
            encoded=True,
        )
        headers = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in _request_headers(scope)]
        try:
            upstream = await self._session.request(
                scope["method"], url, headers=headers, data=body or None, allow_redirects=False
            )
        except (aiohttp.ClientError, OSError):
            await _send_lost(send, replica)
            return
        async with upstream:
            await _pass_on(replica, upstream, send)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_lost(send: Send, replica: Replica) -> None:
    if not replica.ready:
        await send_not_ready(send, replica)
        return
    message = "the engine closed the connection before it answered; ask again"
    await send_error(send, 502, "engine_lost", message, [(b"retry-after", b"3")])


async def _pass_on(replica: Replica, upstream: aiohttp.ClientResponse, send: Send) -> None:
    headers = _end_to_end(list(upstream.raw_headers))
    await send({"type": "http.response.start", "status": upstream.status, "headers": headers})
    tail = b"\n\n"
    try:
        async for chunk in upstream.content.iter_any():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            tail = (tail + chunk)[-2:]
    except (aiohttp.ClientError, OSError):
        if upstream.content_type == "text/event-stream":
            await _send_error_event(replica, send, tail)
        # Returning with the body unfinished makes the server cut the connection, so that
        # no client takes half an answer for a whole one.
        return
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_error_event(replica: Replica, send: Send, tail: bytes) -> None:
    if replica.stage is Stage.DRAINING:
        what = "the server is shutting down and could not wait for the rest of the answer"
        error = error_body(503, "server_shutting_down", what)
    else:
        what = "the engine died before the answer was complete"
        error = error_body(502, "engine_lost", what)
    event = b"data: " + json.dumps(error).encode() + b"\n\n"
    # Half an event may have gone out: end it, or the error would be read as part of it.
    separator = b"" if tail == b"\n\n" else b"\n\n"
    await send({"type": "http.response.body", "body": separator + event, "more_body": True})


def _end_to_end(headers: Headers) -> Headers:
    listed = {
        name.strip().lower()
        for key, value in headers
        if key.lower() == b"connection"
        for name in value.split(b",")
    }
    dropped = HOP_BY_HOP | listed
    return [(key, value) for key, value in headers if key.lower() not in dropped]


def _request_headers(scope: Scope) -> Headers:
    """As the client sent them, but the length is that of the body as read here."""
    dropped = (b"host", b"content-length", b"expect")
    headers = _end_to_end(list(scope["headers"]))
    return [(key, value) for key, value in headers if key not in dropped]
