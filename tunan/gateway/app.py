"""The front door as a pure ASGI application: `/health`, `/ready`, and everything else proxied."""

from tunan.gateway.keys import ApiKeys
from tunan.gateway.proxy import Proxy
from tunan.gateway.replica import RETRY_AFTER, Replica
from tunan.gateway.responses import (
    Receive,
    Scope,
    Send,
    send_error,
    send_json,
    send_not_ready,
)


class FrontDoor:
    """Answers for one replica; what it does not answer itself goes to vLLM byte for byte."""

    def __init__(self, replica: Replica, proxy: Proxy, keys: ApiKeys | None = None) -> None:
        self._replica = replica
        self._proxy = proxy
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request; WebSockets are refused."""
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1003})
            return
        if scope["path"] == "/health":
            await send_json(send, 200, {"status": "alive"})
        elif scope["path"] == "/ready":
            await self._ready(send)
        elif self._keys is not None and not self._keys.open_for(_authorization(scope)):
            challenge = [(b"www-authenticate", b"Bearer")]
            await send_error(send, 401, "invalid_api_key", "missing or wrong API key", challenge)
        elif not self._replica.ready:
            await send_not_ready(send, self._replica)
        else:
            await self._proxy.forward(self._replica, scope, receive, send)

    async def _ready(self, send: Send) -> None:
        replica = self._replica
        content = {
            "ready": replica.ready,
            "stage": str(replica.stage),
            "done": replica.done,
            "total": replica.total,
            "detail": replica.describe(),
        }
        wait = RETRY_AFTER.get(replica.stage)
        headers = [(b"retry-after", str(wait).encode())] if wait else []
        await send_json(send, 200 if replica.ready else 503, content, headers)


def _authorization(scope: Scope) -> bytes:
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    return values[0] if len(values) == 1 else b""
