"""The front door's own answers, in the form of the OpenAI API's errors."""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]


async def send_json(send: Send, status: int, content: Any, headers: Headers | None = None) -> None:
    """Sends one whole JSON response."""
    body = json.dumps(content, ensure_ascii=False).encode()
    start: Headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send(
        {"type": "http.response.start", "status": status, "headers": start + (headers or [])}
    )
    await send({"type": "http.response.body", "body": body})


def error_body(status: int, kind: str, message: str) -> dict[str, Any]:
    """An OpenAI error object."""
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


async def send_error(
    send: Send, status: int, kind: str, message: str, headers: Headers | None = None
) -> None:
    """Sends an OpenAI error object with `status`."""
    await send_json(send, status, error_body(status, kind, message), headers)


def authorization(scope: Scope) -> bytes:
    """The `Authorization` header; empty if there is none, or more than one."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    return values[0] if len(values) == 1 else b""
