"""Tells whoever started the engine how many blocks are loaded.

JSON datagrams `{"stage": "loading", "done": i, "total": n, "rank": r}` to the Unix socket
whose path is in `TUNAN_PROGRESS_SOCKET`. Nobody listening, or too slowly, is no error.
"""

import json
import os
import socket
from dataclasses import dataclass

PROGRESS_SOCKET = "TUNAN_PROGRESS_SOCKET"


@dataclass(frozen=True)
class Progress:
    """Where to send and for which rank; `address` None: nowhere."""

    address: str | None
    rank: int

    @classmethod
    def from_environment(cls, rank: int) -> "Progress":
        return cls(os.environ.get(PROGRESS_SOCKET), rank)

    def report(self, done: int, total: int) -> None:
        """Sends one datagram; never raises and never waits."""
        if not self.address:
            return
        message = {"stage": "loading", "done": done, "total": total, "rank": self.rank}
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            try:
                sender.sendto(json.dumps(message).encode(), self.address)
            except OSError:
                return
