"""Real etcd servers for the tests, each with its data in a folder of the test."""

import asyncio
import base64
import contextlib
import json
import shutil
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientError, ClientSession


def program() -> str:
    """Where etcd is; without it the test fails, because an election nobody held is not tested."""
    found = shutil.which("etcd")
    if found is None:
        pytest.fail("etcd is missing: apt-get install etcd-server")
    return found


def coded(text: str) -> str:
    """As keys and values are sent."""
    return base64.b64encode(text.encode()).decode()


@dataclass
class EtcdServer:
    """A cluster of one; `options` are etcd's."""

    folder: Path
    options: tuple[str, ...] = ()
    scheme: str = "http"
    ports: tuple[int, int] = (0, 0)
    process: asyncio.subprocess.Process | None = None
    token: str = ""
    _log: Any = field(default=None)

    @property
    def url(self) -> str:
        """Where clients ask."""
        return f"{self.scheme}://127.0.0.1:{self.ports[0]}"

    async def start(self) -> None:
        """Starts it, or starts it again with the data that it had; returns once it answers."""
        peers = f"http://127.0.0.1:{self.ports[1]}"
        self.process = await asyncio.create_subprocess_exec(
            program(),
            *("--name", "one", "--data-dir", str(self.folder / "data")),
            *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
            *("--initial-cluster", f"one={peers}"),
            *self.options,
            stdout=self._log,
            stderr=self._log,
        )
        if self.scheme == "https":  # only who shows a certificate may ask
            return
        async with asyncio.timeout(30), ClientSession() as client:
            while True:
                with contextlib.suppress(ClientError, OSError):
                    async with client.get(f"{self.url}/health") as answer:
                        if answer.status == 200:
                            return
                await asyncio.sleep(0.02)

    async def kill(self) -> None:
        """SIGKILL; its data stays."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    async def ask(self, what: str, **question: Any) -> Any:
        """Of the v3 API, as root if there are users."""
        headers = {"Authorization": self.token} if self.token else {}
        async with (
            ClientSession() as client,
            client.post(f"{self.url}/v3/{what}", json=question, headers=headers) as answer,
        ):
            assert answer.status == 200, await answer.text()
            return json.loads(await answer.text())

    async def keys(self) -> list[str]:
        """All there are, as base64."""
        found = await self.ask("kv/range", key=coded("\0"), range_end=coded("\0"))
        return [one["key"] for one in found.get("kvs", ())]

    async def have_users(self, name: str, password: str) -> None:
        """From here on only `root`, as whom `ask` asks, and `name` may do anything."""
        for user in ("root", name):
            await self.ask("auth/user/add", name=user, password=password)
            await self.ask("auth/user/grant", user=user, role="root")
        await self.ask("auth/enable")
        await self.log_in(password)

    async def log_in(self, password: str) -> None:
        """`ask` asks as root."""
        self.token = ""
        self.token = (await self.ask("auth/authenticate", name="root", password=password))["token"]


@contextlib.asynccontextmanager
async def etcd_server(
    folder: Path, *options: str, scheme: str = "http"
) -> AsyncIterator[EtcdServer]:
    """One that answers; nothing of it runs afterwards."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        ports = (sockets[0].getsockname()[1], sockets[1].getsockname()[1])
    with (folder / "etcd.log").open("wb") as log:
        server = EtcdServer(folder, options, scheme, ports, _log=log)
        try:
            await server.start()
            yield server
        finally:
            await server.kill()
