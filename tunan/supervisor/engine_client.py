"""What the supervisor itself asks the engine over its Unix socket: alive, which model, warm-up."""

from pathlib import Path
from typing import Any, Self

import aiohttp

from tunan.errors import OutsideError
from tunan.supervisor.warmup import ANSWER_TOKENS

BASE = "http://engine"


class EngineClient:
    """A client of one engine's OpenAI server."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def __aenter__(self) -> Self:
        """Opens the connection pool."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(self._socket)),
            # A prompt of one whole step may take minutes on a small machine.
            timeout=aiohttp.ClientTimeout(total=None),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes it."""
        await self._session.close()

    async def alive(self) -> bool:
        """Whether the server answers and its engine is not dead."""
        if not self._socket.exists():
            return False
        try:
            async with self._session.get(f"{BASE}/health") as answer:
                return answer.status == 200
        except (aiohttp.ClientError, OSError):
            return False

    async def max_model_len(self) -> int:
        """Longest prompt + answer the engine takes, in tokens."""
        async with self._session.get(f"{BASE}/v1/models") as answer:
            listing: Any = await answer.json()
        try:
            return int(listing["data"][0]["max_model_len"])
        except (KeyError, IndexError, TypeError):
            raise OutsideError(f"the engine does not list its model: {listing}") from None

    async def complete(self, model: str, prompt: list[int]) -> None:
        """One warm-up request of `prompt` token ids. Raises `OutsideError` if it is refused."""
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
        }
        try:
            async with self._session.post(f"{BASE}/v1/completions", json=body) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, OSError) as error:
            raise OutsideError(f"the engine broke off a warm-up request: {error}") from None
        if answer.status != 200:
            raise OutsideError(f"the engine refused a warm-up request: {text[:300]}")
