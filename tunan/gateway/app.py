"""The front door as a pure ASGI application: its own answers; everything else is proxied."""

import asyncio
import contextlib
import math
import re
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path

from tunan.config.deployment import Gateway
from tunan.gateway.access_log import AccessLog
from tunan.gateway.admin import PREFIX, administer, describe
from tunan.gateway.delivery import Delivery
from tunan.gateway.election import Election
from tunan.gateway.health import Health
from tunan.gateway.keys import ApiKeys
from tunan.gateway.limits import Limits, OverLimitError
from tunan.gateway.metrics import Metrics, merged
from tunan.gateway.pool import Pool
from tunan.gateway.probes import Probes
from tunan.gateway.proxy import Proxy
from tunan.gateway.replica import RETRY_AFTER
from tunan.gateway.responses import (
    Message,
    Receive,
    Scope,
    Send,
    authorization,
    send_error,
    send_json,
)
from tunan.gateway.tls import check_server_files, replica_context
from tunan.gateway.upstream import Upstreams

ANYBODY = "anybody"  # stands for the key where there are none
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_METRICS_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class FrontDoor:
    """Answers for a pool of replicas; what it does not answer itself goes to one of them."""

    def __init__(
        self,
        pool: Pool,
        proxy: Proxy,
        settings: Gateway,
        metrics: Metrics,
        access_log: AccessLog,
        election: Election | None = None,
    ) -> None:
        self.settings = settings
        self._pool = pool
        self._proxy = proxy
        self._metrics = metrics
        self._log = access_log
        self._election = election
        self._keys = _keys(settings.api_keys_file)
        self._admin_keys = _keys(settings.admin_keys_file)
        self._limits = Limits(settings, time.monotonic)
        self._draining = False
        self._running = 0
        self._ended = asyncio.Event()

    def drain(self) -> None:
        """From here on requests are refused; running ones may finish."""
        self._draining = True

    async def empty(self) -> None:
        """Returns once none is running."""
        while self._running:
            self._ended.clear()
            await self._ended.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request; WebSockets are refused."""
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1003})
            return
        path = scope["path"]
        if sum(len(k) + len(v) for k, v in scope["headers"]) > self.settings.max_header_kib * 1024:
            await self._refuse(send, 431, "request_too_large", "the headers are too large")
        elif {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
            # RFC 9112, section 6.1: what smuggling looks like. Not every parser refuses it.
            await self._refuse(send, 400, "invalid_request_error", "a length and an encoding")
        elif path == "/health":
            await send_json(send, 200, {"status": "alive"})
        elif path == "/ready":
            await self._ready(send)
        elif path == PREFIX or path.startswith(f"{PREFIX}/"):
            await self._administer(scope, send)
        elif not (key := self._key(scope)):
            challenge = [(b"www-authenticate", b"Bearer")]
            self._metrics.refused.labels("key").inc()
            await send_error(send, 401, "invalid_api_key", "missing or wrong API key", challenge)
        elif path == "/metrics":
            await self._show_metrics(send)
        elif self._draining:
            await self._refuse(send, 503, "service_unavailable", "the gateway is shutting down", 10)
        else:
            await self._limited(key, scope, receive, send)

    def _key(self, scope: Scope) -> str:
        return ANYBODY if self._keys is None else self._keys.name_of(authorization(scope))

    async def _limited(self, key: str, scope: Scope, receive: Receive, send: Send) -> None:
        delivery = Delivery(send, self._metrics, _request_id(scope))
        try:
            with self._limits.request(key):
                self._running += 1
                try:
                    used = await self._proxy.forward(scope, receive, delivery)
                finally:
                    self._running -= 1
                    self._ended.set()
            self._limits.used(key, used)
            self._metrics.tokens.labels(key).inc(used)
        except OverLimitError as error:
            wait = [(b"retry-after", str(math.ceil(error.wait_s)).encode())]
            self._metrics.refused.labels("limit").inc()
            await delivery.error(429, "rate_limit_exceeded", str(error), wait)
        finally:
            self._metrics.requests.labels(key, delivery.status).inc()
            self._write_line(
                scope, delivery.request_id, key, delivery.status, delivery.began, delivery.first_s
            )

    async def _administer(self, scope: Scope, send: Send) -> None:
        began, statuses = time.monotonic(), [0]

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            await send(message)

        try:
            await administer(self._pool, self._election, self._admin_keys, scope, watched)
        finally:
            self._write_line(scope, _request_id(scope), "admin", statuses[-1], began, None)

    def _write_line(
        self,
        scope: Scope,
        request_id: str,
        key: str,
        status: int,
        began: float,
        first_s: float | None,
    ) -> None:
        self._log.write(
            request_id=request_id,
            key=key,
            method=scope["method"],
            path=scope["path"][:200],
            status=status,
            seconds=round(time.monotonic() - began, 4),
            first_byte_s=first_s and round(first_s, 4),
            client=(scope.get("client") or ("",))[0],
        )

    async def _refuse(
        self, send: Send, status: int, kind: str, message: str, wait_s: int = 0
    ) -> None:
        headers = [(b"connection", b"close")]
        if wait_s:
            headers.append((b"retry-after", str(wait_s).encode()))
        self._metrics.refused.labels(kind).inc()
        await send_error(send, status, kind, message, headers)

    async def _ready(self, send: Send) -> None:
        first = self._pool.furthest
        content = {
            "ready": self._pool.ready,
            "stage": str(first.stage),
            "done": first.done,
            "total": first.total,
            "detail": self._pool.describe(),
            "replicas": [describe(replica) for replica in self._pool.replicas],
        }
        wait = RETRY_AFTER.get(first.stage)
        headers = [(b"retry-after", str(wait).encode())] if wait else []
        await send_json(send, 200 if self._pool.ready else 503, content, headers)

    async def _show_metrics(self, send: Send) -> None:
        body = self._metrics.text() + merged(await self._proxy.replica_metrics())
        headers = [(b"content-type", _METRICS_TYPE), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def front_door(
    pool: Pool, gateway: Gateway, election: Election | None = None
) -> AsyncIterator[FrontDoor]:
    """The application for `serving`, with all it needs running while the block runs.

    `election` is only shown; `taking_part` takes part in it.

    Raises `UsageError` if a file that `gateway` names cannot be used.
    """
    check_server_files(gateway)
    with AccessLog(gateway.access_log) as log:
        async with Upstreams(pool.replicas, replica_context(gateway)) as upstreams:
            metrics = Metrics(pool, election)
            health = Health(pool, upstreams, gateway)
            proxy = Proxy(pool, upstreams, health, gateway, metrics)
            app = FrontDoor(pool, proxy, gateway, metrics, log, election)
            async with health.watching(), Probes(pool, upstreams, gateway).running():
                yield app


def _keys(path: Path | None) -> ApiKeys | None:
    return ApiKeys.read(path) if path else None


def _request_id(scope: Scope) -> str:
    """The client's, if it is one that can be logged; else a fresh one."""
    given = [value for name, value in scope["headers"] if name == b"x-request-id"]
    if len(given) == 1 and _REQUEST_ID.fullmatch(given[0]):
        return str(given[0], "ascii")
    return secrets.token_hex(16)
