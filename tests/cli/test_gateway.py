"""`tunan gateway` as a process."""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.gateway.fake_engine import Trouble, fake_engine
from tests.gateway.fleet import CHAT, read
from tests.gateway.test_resume import body_for
from tunan.cli.main import build_parser, main

PROGRAM = (sys.executable, "-m", "tunan", "gateway")


async def started(*options: str) -> tuple[asyncio.subprocess.Process, str]:
    """The process and its address."""
    process = await asyncio.create_subprocess_exec(
        *PROGRAM, "--port", "0", *options, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    line = (await process.stderr.readline()).decode()
    assert "gateway at " in line
    return process, line.split("gateway at ")[1].split(";")[0]


async def ready(client: ClientSession, url: str) -> Any:
    async with asyncio.timeout(120):
        while True:
            async with client.get(f"{url}/ready") as answer:
                state = await answer.json()
                if answer.status == 200:
                    return state
            await asyncio.sleep(0.05)


async def test_it_goes_on_with_a_stream_and_drains_on_sigterm() -> None:
    async with fake_engine() as first, fake_engine() as second, ClientSession() as client:
        process, url = await started("--replica", first.url, "--replica", second.url)
        state = await ready(client, url)
        assert [replica["name"] for replica in state["replicas"]] == ["replica-0", "replica-1"]
        body = body_for(CHAT, min_tokens=40)
        async with client.post(second.url + CHAT, json=body) as answer:
            whole = await read(answer)
        first.troubles = [Trouble("reset", 5)]
        second.gap_s = 0.03
        async with client.post(url + CHAT, json=body) as answer:
            await answer.content.readany()
            process.send_signal(signal.SIGTERM)
            told = await read(answer)
        assert whole.text.endswith(told.text)
        assert told.done
        assert await process.wait() == 0
        assert process.stderr is not None
        assert b"stopped" in await process.stderr.read()


async def test_what_runs_longer_than_the_drain_is_told_why_it_ends() -> None:
    async with fake_engine() as engine, ClientSession() as client:
        process, url = await started("--replica", engine.url, "--shutdown-timeout", "0.2")
        await ready(client, url)
        engine.troubles = [Trouble("stall", 4)]
        async with client.post(url + CHAT, json=body_for(CHAT)) as answer:
            process.send_signal(signal.SIGTERM)
            told = await read(answer)
        assert told.error["type"] == "server_shutting_down"
        assert not told.done
        assert await process.wait() == 0
        assert process.stderr is not None
        await process.stderr.read()


async def test_replicas_that_come_and_go_and_one_that_is_not_there_are_said_once() -> None:
    async with fake_engine() as first, fake_engine() as second, ClientSession() as client:
        nobody = "http://127.0.0.1:1"
        process, url = await started(*("--replica", first.url, "--replica", second.url),
                                     "--replica", nobody)  # fmt: skip
        assert process.stderr is not None
        said = [(await process.stderr.readline()).decode() for _ in range(3)]
        assert sorted(said) == [
            f"tunan: replica-0 is ready: {first.url}\n",
            f"tunan: replica-1 is ready: {second.url}\n",
            f"tunan: replica-2 is not ready yet: {nobody}: away: nothing listens there\n",
        ]
        await ready(client, url)
        first.troubles = [Trouble("reset", 5)]
        first.healthy = False
        async with client.post(url + CHAT, json=body_for(CHAT, min_tokens=40)) as answer:
            assert (await read(answer)).done
        assert b"replica-0 is lost: " in await process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
        assert await process.stderr.read() == b"tunan: stopped\n"


def test_nothing_heavy_is_imported() -> None:
    program = (
        "import sys, tunan.gateway.standalone, tunan.cli.gateway\n"
        "print([m for m in ('torch', 'vllm', 'transformers') if m in sys.modules])"
    )
    out = subprocess.run((sys.executable, "-c", program), capture_output=True, check=True)
    assert json.loads(out.stdout.replace(b"'", b'"')) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "name at least one engine"),
        (("--replica", "file:///etc/passwd"), "must be http://HOST:PORT"),
        (("--replica", "http://h:1/path"), "must be http://HOST:PORT"),
        (("--standby", "http://h:1"), "no replica is active"),
    ],
)
def test_wrong_use_is_one_line(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    assert main(["gateway", *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_deployment_file_names_the_engines(tmp_path: Path) -> None:
    from tunan.cli.gateway import deployment_of

    file = tmp_path / "deploy.yaml"
    file.write_text(
        "model: {path: /m}\ngateway: {port: 9}\n"
        "replicas: [{url: 'http://h:1'}, {url: 'http://h:2', role: standby}]\n"
    )
    args = build_parser().parse_args(["gateway", "--config", str(file), "--host", "::1"])
    deployment = deployment_of(args)
    assert [engine.role for engine in deployment.replicas.elsewhere] == ["active", "standby"]
    assert (deployment.gateway.host, deployment.gateway.port) == ("::1", 9)
