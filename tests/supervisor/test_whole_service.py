"""The whole of `serve()` in this process, with fake engines that are real processes."""

import asyncio
import contextlib
import json
import os
import signal
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from tests.supervisor.fleets import use_fake_engines
from tunan.config import deployment_from
from tunan.supervisor.control import CONTROL_SOCKET
from tunan.supervisor.directories import Directories
from tunan.supervisor.service import Options, _serve

PATIENCE_S = 120


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    use_fake_engines(monkeypatch)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


class Listener:
    """The JSON events that are printed in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], service: "asyncio.Task[int]") -> None:
        self._capsys = capsys
        self._service = service
        self.events: list[dict[str, Any]] = []

    async def until(self, name: str, times: int = 1) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for line in self._capsys.readouterr().out.splitlines():
                    self.events.append(json.loads(line))
                found = [event for event in self.events if event["event"] == name]
                if len(found) >= times:
                    return found[times - 1]
                assert not self._service.done() or self._service.result() == 0
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("count", [1, 2])
async def test_from_bind_to_exit_status(
    count: int, temporary: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"hidden_size": 64, "num_attention_heads": 1, "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 128}))
    (tmp_path / "model.safetensors").write_bytes(bytes(8))
    deployment = deployment_from(
        {
            "model": {"path": str(tmp_path), "served_model_name": "fake"},
            "replicas": {"count": 1, "standby": count - 1},
            "memory": {"kv_cache_gib": 0.1},
            "gateway": {"port": 0},
        },
        "test",
    )
    directories = Directories(tmp_path / "cache", tmp_path / "state")
    service = asyncio.create_task(
        _serve(deployment, Options(as_json=True, directories=directories))
    )
    heard = Listener(capsys, service)
    starting = await heard.until("starting")
    assert [replica["role"] for replica in starting["replicas"]] == ["active", "standby"][:count]
    name = "engine.log" if count == 1 else "engine-0.log"
    assert starting["log"] == str(next((tmp_path / "state").iterdir()) / name)
    ready = await heard.until("ready", count)
    assert ready["replica"] == f"replica-{count - 1}"
    async with aiohttp.ClientSession(starting["address"]) as client:
        async with client.get("/ready") as answer:
            assert answer.status == 200
            assert len((await answer.json())["replicas"]) == count
        async with client.post("/v1/completions", json={"model": "fake", "prompt": "x"}) as answer:
            assert (await answer.json())["choices"][0]["text"] == "x"
    (control,) = await asyncio.to_thread(lambda: [*temporary.glob(f"*/{CONTROL_SOCKET}")])
    assert stat.S_IMODE(control.parent.stat().st_mode) == 0o700
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(service, PATIENCE_S) == 0
    assert (await heard.until("stopped"))["cut"] == 0
    assert await asyncio.to_thread(lambda: [*temporary.iterdir()]) == []


async def test_engines_elsewhere_are_served_from_and_none_is_started(
    temporary: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with fake_engine_elsewhere() as url:
        deployment = deployment_from(
            {
                "model": {"path": "/models/fake"},
                "replicas": [{"url": url}],
                "gateway": {"port": 0, "probe_interval_s": 0.05},
            },
            "test",
        )
        directories = Directories(tmp_path / "cache", tmp_path / "state")
        service = asyncio.create_task(
            _serve(deployment, Options(as_json=True, directories=directories))
        )
        heard = Listener(capsys, service)
        starting = await heard.until("starting")
        assert (starting["device"], starting["logs"]) == ("elsewhere", [])
        assert starting["replicas"][0]["address"] == url
        assert (await heard.until("ready"))["replica"] == "replica-0"
        async with (
            aiohttp.ClientSession(starting["address"]) as client,
            client.post("/v1/completions", json={"model": "fake", "prompt": "x"}) as answer,
        ):
            assert (await answer.json())["choices"][0]["text"] == "from elsewhere"
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(service, PATIENCE_S) == 0


async def test_an_engine_elsewhere_that_does_not_answer_is_told_once(
    temporary: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with fake_engine_elsewhere() as url:
        deployment = deployment_from(
            {
                "model": {"path": "/models/fake"},
                "replicas": [{"url": url}, {"url": "http://127.0.0.1:1"}],
                "gateway": {"port": 0, "probe_interval_s": 0.05},
            },
            "test",
        )
        directories = Directories(tmp_path / "cache", tmp_path / "state")
        service = asyncio.create_task(
            _serve(deployment, Options(as_json=True, directories=directories))
        )
        heard = Listener(capsys, service)
        address = (await heard.until("starting"))["address"]
        away = await heard.until("away")
        assert (away["replica"], away["what"]) == ("replica-1", "away: nothing listens there")
        async with aiohttp.ClientSession(address) as client, client.get("/ready") as answer:
            assert "replica-1 away: nothing listens there" in (await answer.json())["detail"]
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(service, PATIENCE_S) == 0
    assert [event["replica"] for event in heard.events if event["event"] == "ready"] == [
        "replica-0"
    ]
    assert len([event for event in heard.events if event["event"] == "away"]) == 1


@contextlib.asynccontextmanager
async def fake_engine_elsewhere() -> AsyncIterator[str]:
    """The URL of a server that knows `/health` and completions, as plain vLLM does."""

    async def complete(_: web.Request) -> web.Response:
        return web.json_response({"choices": [{"index": 0, "text": "from elsewhere"}]})

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.add_routes([web.get("/health", health), web.post("/v1/completions", complete)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield str(URL.build(scheme="http", host="127.0.0.1", port=runner.addresses[0][1]))
    finally:
        await runner.cleanup()
