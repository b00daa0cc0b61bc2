"""`tunan serve` takes part in the election of who holds a shared address. A real etcd."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.gateway.electing import PATIENCE_S, hook, runs
from tests.gateway.etcd_server import etcd_server
from tests.supervisor.test_whole_service import Listener, fake_engine_elsewhere, temporary
from tunan.cli.main import main
from tunan.config import deployment_from
from tunan.supervisor.directories import Directories
from tunan.supervisor.service import Options, _serve

__all__ = ["temporary"]  # the fixture: the only place where services are looked for


async def test_a_service_holds_says_so_in_its_status_and_gives_way_on_sigterm(
    temporary: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with etcd_server(tmp_path) as etcd, fake_engine_elsewhere() as url:
        shared = {"endpoints": [etcd.url], "name": "one", "hook": hook(tmp_path), "lease_s": 60}
        deployment = deployment_from(
            {
                "model": {"path": "/models/fake"},
                "replicas": [{"url": url}],
                "gateway": {"port": 0, "probe_interval_s": 0.05, "etcd": shared},
            },
            "test",
        )
        directories = Directories(tmp_path / "cache", tmp_path / "state")
        service = asyncio.create_task(
            _serve(deployment, Options(as_json=True, directories=directories))
        )
        heard = Listener(capsys, service)
        ready = await heard.until("ready")
        await heard.until("holder")
        name = ready["address"].rpartition(":")[2]  # its port: other services may run here
        assert await asyncio.to_thread(main, ["status", name]) == 0
        assert "\nshared address: held by one (this gateway)\n" in capsys.readouterr().out
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(service, PATIENCE_S) == 0
        assert runs(tmp_path) == ["one release", "one acquire", "one release"]
        assert await etcd.keys() == []
