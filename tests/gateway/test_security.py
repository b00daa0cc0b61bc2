"""What a hostile client may try."""

import asyncio
import json
import logging
import resource
import socket
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientError

from tests.gateway.fake_engine import Trouble
from tests.gateway.fleet import CHAT, COMPLETION, Fleet, fleet
from tests.gateway.test_resume import body_for
from tunan.config.deployment import Gateway
from tunan.errors import UsageError
from tunan.gateway.noise import MALFORMED, quiet
from tunan.gateway.tls import check_server_files, replica_context

SECRET = "a-secret-prompt-of-nobody"
KEY = "a-key-of-enough-length"
ADMIN = "an-admin-key-of-length"


async def raw(door: Fleet, data: bytes, seconds: float = 60) -> bytes:
    """What comes back for bytes as they are."""
    host, port = door.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        await writer.drain()
        return await asyncio.wait_for(reader.read(), seconds)
    finally:
        writer.close()


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'"text"',
        b"[1]",
        b"\xff\xfe",
        b'{"prompt": "\xff"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"max_tokens": ' + b"9" * 10_000 + b"}",
        b'{"max_tokens": NaN}',
        b'{"temperature": -Infinity}',
    ],
    ids=[
        *("cut", "text", "list", "utf-16", "latin-1", "deep list", "deep object", "digits"),
        *("not a number", "infinite"),
    ],
)
async def test_a_malformed_body_is_400_and_reaches_no_replica(body: bytes) -> None:
    async with fleet(1) as door:
        async with door.client.post(door.url + COMPLETION, data=body) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["type"] == "invalid_request_error"
        assert door.engines[0].requests == []


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
        b"Content-Length: 4\r\n\r\nabcd",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: b\x00c\r\n\r\n",
        b"GET @127.0.0.1:1/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["both", "two lengths", "odd coding", "space", "nul", "target", "tls"],
)
async def test_smuggled_framing_is_refused_and_reaches_no_replica(head: bytes) -> None:
    async with fleet(1) as door:
        answer = await raw(door, head + b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400")
        assert door.engines[0].requests == []
        assert (await door.ask(CHAT, body_for(CHAT))).done


async def test_malformed_requests_are_told_with_their_count_and_not_each(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet(1) as door:
        for _ in range(5):
            assert (await raw(door, b"\x16\x03\x01\x02\r\n\r\n")).startswith(b"HTTP/1.1 400")
        upgrade = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\n"
        await raw(door, upgrade + b"Upgrade: websocket\r\n\r\n")
        told = "tunan: warning: refused a request that was not HTTP, with status 400\n"
        assert capsys.readouterr().err == told
    told = "tunan: warning: refused 4 requests that were not HTTP, with status 400\n"
    assert capsys.readouterr().err == told
    assert [record for record in caplog.records if record.name == "uvicorn.error"] == []


async def test_malformed_requests_are_told_again_after_a_while(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger = logging.getLogger("uvicorn.error")
    with quiet(pause_s=0.01):
        for _ in range(4):
            logger.warning(MALFORMED)
        told = ""
        while "refused 3 requests" not in told:
            await asyncio.sleep(0.001)
            told += capsys.readouterr().err
    assert told.count("\n") == 2
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("target", ["http://127.0.0.1:1/v1/models", "//127.0.0.1:1/v1/models"])
async def test_no_request_target_names_another_address(target: str) -> None:
    async with fleet(1) as door:
        head = f"POST {target} HTTP/1.1\r\nHost: 127.0.0.1:1\r\nConnection: close\r\n"
        answer = await raw(door, f"{head}Content-Length: 2\r\n\r\n{{}}".encode())
        # One parser takes the path of it, the other none.
        assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 400"))
        for path, _ in door.engines[0].requests:
            assert path.endswith("/v1/models")
        for headers in door.engines[0].headers:
            assert headers["host"] == door.engines[0].url.removeprefix("http://")


async def test_a_head_without_end_is_431() -> None:
    async with fleet(1, max_header_kib=1) as door:
        assert b" 431 " in await raw(door, b"GET / HTTP/1.1\r\nA: " + b"x" * 5000)
        whole = b"GET /x HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 5000 + b"\r\n\r\n"
        assert b" 431 " in await raw(door, whole)


async def test_a_head_without_end_behind_a_running_request_is_cut_off() -> None:
    async with fleet(1, max_header_kib=8) as door:
        door.engines[0].troubles = [Trouble("stall", 3)]
        body = json.dumps(body_for(CHAT)).encode()
        host, port = door.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\n" % CHAT.encode())
        writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await reader.readuntil(b"data: ")
        writer.write(b"GET / HTTP/1.1\r\nA: " + b"x" * 50_000)
        await asyncio.wait_for(reader.read(), 60)
        writer.close()
        await asyncio.wait_for(door.replicas[0].empty(), 60)


async def test_a_head_that_comes_too_slowly_is_cut_off() -> None:
    async with fleet(1, header_timeout_s=0.2) as door:
        assert b" 408 " in await raw(door, b"GET / HTTP/1.1\r\nA: ")
        assert b" 408 " in await raw(door, b"")


async def test_a_second_request_on_a_connection_has_its_own_time() -> None:
    async with fleet(1, header_timeout_s=1) as door:
        host, port = door.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for _ in range(2):
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"alive")).startswith(b"HTTP/1.1 200")
            await reader.readuntil(b"}")
            await asyncio.sleep(0.7)
        writer.write(b"GET /he")
        assert b" 408 " in await asyncio.wait_for(reader.read(), 60)
        writer.close()


async def test_a_body_that_comes_too_slowly_is_408() -> None:
    async with fleet(1, body_timeout_s=0.2) as door:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf"
        assert b" 408 " in await raw(door, head)
        assert door.engines[0].requests == []


async def test_ten_thousand_idle_connections_do_not_keep_others_out() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 10_000
    if hard < 2 * wanted + 500:
        wanted = (hard - 500) // 2
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * wanted + 500), hard))
    idle: list[socket.socket] = []
    try:
        async with fleet(1) as door:
            host, port = door.url.removeprefix("http://").split(":")
            for number in range(wanted):
                idle.append(socket.create_connection((host, int(port))))
                if number % 500 == 0:
                    await asyncio.sleep(0)  # the door is on the same loop
            await asyncio.sleep(0.1)
            assert (await door.ask(CHAT, body_for(CHAT))).done
            assert len(idle) > 9_000
    finally:
        for connection in idle:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_the_access_log_has_no_prompt_and_no_key(tmp_path: Path) -> None:
    keys, log = tmp_path / "keys", tmp_path / "access.log"
    keys.write_text(KEY)
    async with fleet(2, api_keys_file=keys, access_log=log) as door:
        headers = {"Authorization": f"Bearer {KEY}", "X-Request-Id": "mine-1"}
        door.engines[0].troubles = [Trouble("reset", 3)]
        body = body_for(CHAT) | {"messages": [{"role": "user", "content": SECRET}]}
        url = f"{door.url}{CHAT}?secret={SECRET}"
        async with door.client.post(url, json=body, headers=headers) as answer:
            assert answer.headers["x-request-id"] == "mine-1"
            await answer.read()
    text = log.read_text()
    assert SECRET not in text
    assert KEY not in text
    line = json.loads(text)
    assert (line["request_id"], line["status"], line["path"]) == ("mine-1", 200, CHAT)
    assert log.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("given", ["a\tb", "x" * 200, "ä", ""])
async def test_a_request_id_that_cannot_be_logged_is_replaced(given: str) -> None:
    async with fleet(1) as door:
        headers = {"X-Request-Id": given}
        async with door.client.post(
            door.url + CHAT, json=body_for(CHAT), headers=headers
        ) as answer:
            assert len(answer.headers["x-request-id"]) == 32
        assert door.engines[0].headers[0]["x-request-id"] == answer.headers["x-request-id"]


async def test_admin_needs_its_own_key_and_holds_a_replica(tmp_path: Path) -> None:
    keys, admin, log = (tmp_path / name for name in ("keys", "admin", "access.log"))
    keys.write_text(KEY)
    admin.write_text(ADMIN)
    async with fleet(2, api_keys_file=keys, admin_keys_file=admin, access_log=log) as door:
        url = f"{door.url}/admin/replicas"
        for key, status in ((KEY, 401), (ADMIN, 200)):
            async with door.client.get(url, headers={"Authorization": f"Bearer {key}"}) as answer:
                assert answer.status == status
        headers = {"Authorization": f"Bearer {ADMIN}"}
        for action, ready in (("hold", False), ("release", True)):
            async with door.client.post(f"{url}/replica-0/{action}", headers=headers) as answer:
                assert answer.status == 200
            assert door.replicas[0].ready is ready
        async with door.client.post(f"{url}/replica-9/hold", headers=headers) as answer:
            assert answer.status == 404
        async with door.client.get(f"{door.url}/admin/../v1", headers=headers) as answer:
            assert answer.status == 401
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["status"] for line in lines] == [401, 200, 200, 200, 404]
    assert {line["key"] for line in lines} == {"admin"}


async def test_without_admin_keys_there_is_no_admin() -> None:
    async with fleet(1) as door:
        async with door.client.get(f"{door.url}/admin/replicas") as answer:
            assert answer.status == 404
        assert door.engines[0].requests == []


async def test_tls_with_client_certificates(tmp_path: Path) -> None:
    files = certificates(tmp_path)
    settings: dict[str, Any] = {
        "tls_cert_file": files["server.pem"],
        "tls_key_file": files["server.key"],
        "tls_client_ca_file": files["ca.pem"],
    }
    async with fleet(1, **settings) as door:
        url = door.url.replace("http://", "https://")
        context = ssl.create_default_context(cafile=files["ca.pem"])
        with pytest.raises(ClientError):
            async with door.client.get(f"{url}/health", ssl=context) as answer:
                await answer.read()
        context.load_cert_chain(files["client.pem"], files["client.key"])
        async with door.client.get(f"{url}/health", ssl=context) as answer:
            assert answer.status == 200


def test_tls_files_that_cannot_be_used_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("no certificate")
    wrong: list[dict[str, Any]] = [
        {"tls_cert_file": tmp_path / "bad.pem"},
        {"tls_cert_file": tmp_path / "none.pem"},
        {"tls_key_file": tmp_path / "bad.pem"},
    ]
    for settings in wrong:
        with pytest.raises(UsageError, match=r"gateway\.tls_cert_file"):
            check_server_files(Gateway(**settings))
    one = tmp_path / "bad.pem"
    with pytest.raises(UsageError, match="holds nothing in PEM form"):
        check_server_files(Gateway(tls_cert_file=one, tls_key_file=one))
    with pytest.raises(UsageError, match=r"gateway\.replica_ca_file"):
        replica_context(Gateway(replica_ca_file=tmp_path / "bad.pem"))


@pytest.mark.parametrize(
    ("key", "look"),
    [
        ("tls_cert_file", check_server_files),
        ("replica_ca_file", replica_context),
        ("replica_cert_file", replica_context),
    ],
)
def test_a_certificate_is_not_looked_for_in_what_has_no_end(
    key: str, look: Callable[[Gateway], object]
) -> None:
    settings = Gateway.model_validate({key: Path("/dev/zero")})
    with pytest.raises(UsageError, match="/dev/zero: not a regular file"):
        look(settings)


def certificates(folder: Path) -> dict[str, Path]:
    """A certificate authority, a server's and a client's certificate, by `openssl`."""

    def run(*words: str) -> None:
        subprocess.run(("openssl", *words), cwd=folder, check=True, capture_output=True)

    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    usage = ("-addext", "keyUsage=critical,keyCertSign")
    run("req", "-x509", *key, *usage, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    for name in ("server", "client"):
        run("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
        run("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signed)
    return {path.name: path for path in folder.iterdir()}
