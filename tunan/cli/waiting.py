"""Waits for a server's `/ready`, saying on the way how far it is."""

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

from tunan.errors import OutsideError

if TYPE_CHECKING:
    from aiohttp import ClientSession

# A server that was only just started has not bound its port yet.
UNBOUND_SECONDS = 15.0
POLL_SECONDS = 0.2
FAILED = "failed"


async def wait_until_ready(session: "ClientSession", url: str, seconds: float) -> None:
    """Returns once `url` answers that it is ready.

    Raises `OutsideError` after `seconds`, at once if the server says that its engine has
    failed, and if nothing listens: after 15 s, or at once where something did before.
    """
    import aiohttp

    begin, shown, seen = time.monotonic(), "", False
    while True:
        try:
            async with session.get(f"{url}/ready") as answer:
                seen, state = True, await _state(answer, url)
        except aiohttp.ClientConnectionError:
            if seen:
                raise OutsideError(f"the server at {url} stopped; its log says why") from None
            if time.monotonic() - begin > min(seconds, UNBOUND_SECONDS):
                raise
            state = {"detail": "waiting for the server"}
        if state.get("ready"):
            return
        detail = str(state.get("detail", ""))
        if state.get("stage") == FAILED:
            raise OutsideError(f"{url}: {detail}")
        if detail != shown:
            shown = detail
            print(detail, file=sys.stderr, flush=True)  # noqa: T201
        if time.monotonic() - begin > seconds:
            raise OutsideError(f"{url} is not ready after {seconds:g} s: {detail}")
        await asyncio.sleep(POLL_SECONDS)


async def _state(answer: Any, url: str) -> dict[str, Any]:
    try:
        state = await answer.json()
    except ValueError:
        state = None
    if not isinstance(state, dict) or "ready" not in state:
        raise OutsideError(
            f"{url} has no /ready; leave --wait out for a server that is not Tunan's"
        )
    return state
