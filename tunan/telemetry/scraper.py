"""Asks other programs for their metrics, all at once and within a limit of time and size."""

import asyncio
import threading
import time
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp
from prometheus_client import Metric

from tunan.telemetry.page import OPENMETRICS, PageError, parsed
from tunan.telemetry.targets import Asking, Target

MOST_BYTES = 4 << 20  # vLLM's page has a tenth of a megabyte; this many take seconds to read
OK = 200


@dataclass(frozen=True)
class Page:
    """What a target showed; `problem`: why it showed nothing, else empty. `seconds`: how long it
    took."""

    target: Target
    families: tuple[Metric, ...] = ()
    problem: str = ""
    seconds: float = 0.0


class Scraper:
    """Has a thread with a loop of its own while it is entered.

    Nothing but the targets is ever asked: redirects are not followed, proxies not used.
    """

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scraper", daemon=True)
        self._lock = threading.Lock()
        self._running: Future[list[Page]] | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(_end_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def pages(self) -> list[Page]:
        """A page a target, in their order. Who asks while another is being answered gets the same
        answer, so that a monitor that is its own target comes to an end."""
        with self._lock:
            if self._running is None or self._running.done():
                self._running = asyncio.run_coroutine_threadsafe(self._ask_all(), self._loop)
            running = self._running
        try:
            return running.result()
        except CancelledError:  # the end, while somebody was still being answered
            return []

    async def _ask_all(self) -> list[Page]:
        headers = {"Accept": f"text/plain;version=0.0.4,{OPENMETRICS};q=0.5"}
        headers["Accept-Encoding"] = "identity"  # a little can be unpacked to very much
        if self._asking.key:
            headers["Authorization"] = f"Bearer {self._asking.key}"
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._asking.tls or True, force_close=True),
            timeout=aiohttp.ClientTimeout(total=self._asking.timeout_s),
            headers=headers,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        ) as session:
            return await asyncio.gather(
                *(self._ask(session, target) for target in self._asking.targets)
            )

    async def _ask(self, session: aiohttp.ClientSession, target: Target) -> Page:
        begin = time.monotonic()
        families, problem = tuple[Metric, ...](), ""
        try:
            async with asyncio.timeout(self._asking.timeout_s):  # with what reading it takes
                families = tuple(await _families(session, target.url))
        except TimeoutError:
            problem = f"no whole answer in {self._asking.timeout_s:g} s"
        except PageError as error:
            problem = str(error)
        except aiohttp.ClientConnectorError as error:
            problem = f"cannot be reached: {error.os_error.strerror or error.os_error}"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            problem = _in_words(error)
        return Page(target, families, problem, time.monotonic() - begin)


async def _families(session: aiohttp.ClientSession, url: str) -> list[Metric]:
    async with session.get(url, allow_redirects=False) as answer:
        if answer.status != OK:
            raise PageError(f"answers {answer.status}{_HINTS.get(answer.status, '')}")
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise PageError("answers in an encoding that was not asked for")
        content = bytearray()
        async for piece in answer.content.iter_any():
            content += piece
            if len(content) > MOST_BYTES:
                raise PageError(f"shows more than {MOST_BYTES >> 20} MiB")
        # Not in the loop: a large page would hold the others up beyond their time.
        return await asyncio.to_thread(parsed, bytes(content), answer.content_type)


def _in_words(error: Exception) -> str:
    """What is in the way of an answer, without the client's own terms."""
    if isinstance(error, aiohttp.ClientResponseError):
        return "what it sends is not HTTP; is it another kind of port?"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "closes the connection without an answer; does it want https, or none at all?"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "its answer breaks off"
    if isinstance(error, aiohttp.InvalidURL | ValueError):
        return "its address cannot be asked"
    reason = error.strerror if isinstance(error, OSError) else ""
    return f"the connection fails: {reason or type(error).__name__}"


_HINTS = {401: ": it wants the API key of monitor.scrape_key_file", 404: ": has no such page"}


async def _end_others() -> None:
    """So that who waits for an answer does not wait for ever when the loop is stopped."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
