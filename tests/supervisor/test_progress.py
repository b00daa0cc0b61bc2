"""Hearing the loader's progress."""

import asyncio
import json
import socket
from pathlib import Path

from tunan.supervisor.progress import listening


async def test_ranks_are_summed_and_nonsense_is_left_out(tmp_path: Path) -> None:
    heard: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
    path = tmp_path / "progress.sock"
    async with listening(path, lambda done, total: heard.put_nowait((done, total))):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(str(path))
            for message in (
                json.dumps({"stage": "loading", "done": 1, "total": 4, "rank": 0}).encode(),
                b"\xff not json",
                b"[]",
                b'{"done": "x"}',
                json.dumps({"stage": "loading", "done": 3, "total": 4, "rank": 1}).encode(),
            ):
                sender.send(message)
        assert [await heard.get(), await heard.get()] == [(1, 4), (4, 8)]
