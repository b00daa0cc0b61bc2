"""Takes the body of a request whole, within limits of size and time.

So a slow or broken sender never holds an engine.
"""

import asyncio

from tunan.gateway.responses import Receive, Scope


class BodyTooLargeError(Exception):
    """The request's body is larger than allowed."""


class BodyTooSlowError(Exception):
    """The request's body did not come in time."""


class ClientGoneError(Exception):
    """The client closed its connection."""


async def read_body(scope: Scope, receive: Receive, limit_bytes: int, timeout_s: float) -> bytes:
    """The whole body. Raises one of the errors above."""
    declared = dict(scope["headers"]).get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > limit_bytes:
        raise BodyTooLargeError
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > limit_bytes:
                    raise BodyTooLargeError
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise BodyTooSlowError from None
