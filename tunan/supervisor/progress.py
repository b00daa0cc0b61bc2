"""Hears from the engine's loader how many blocks are loaded: JSON datagrams on a Unix socket."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

Heard = Callable[[int, int], None]


class _Receiver(asyncio.DatagramProtocol):
    def __init__(self, heard: Heard) -> None:
        self._heard = heard
        self._ranks: dict[int, tuple[int, int]] = {}

    def datagram_received(self, data: bytes, _address: object) -> None:
        """One rank's progress; what is not understood is left out, for it only informs."""
        try:
            message = json.loads(data)
            done, total = int(message["done"]), int(message["total"])
            rank = int(message.get("rank", 0))
        except (ValueError, KeyError, TypeError, RecursionError):
            return
        self._ranks[rank] = (done, total)
        self._heard(*(sum(column) for column in zip(*self._ranks.values(), strict=True)))


@contextlib.asynccontextmanager
async def listening(path: Path, heard: Heard) -> AsyncIterator[None]:
    """Calls `heard(done, total)`, summed over the ranks, while the block runs."""
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind(str(path))
    receiver.setblocking(False)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: _Receiver(heard), sock=receiver)
    try:
        yield
    finally:
        transport.close()
