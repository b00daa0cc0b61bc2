"""Asking a real etcd: users, certificates, and what it refuses."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.electing import candidate, holder_of, running, until
from tests.gateway.etcd_server import etcd_server
from tests.gateway.test_security import certificates
from tunan.config.etcd import Etcd
from tunan.errors import UsageError
from tunan.gateway.etcd import Entry, EtcdClient, EtcdError

PASSWORD = "a password, 密码"


async def test_keys_come_in_the_order_in_which_they_were_made_and_go_with_their_lease(
    tmp_path: Path,
) -> None:
    async with (
        etcd_server(tmp_path) as server,
        EtcdClient(Etcd(endpoints=(server.url,)), 5) as etcd,
    ):
        first, second = await etcd.grant(60), await etcd.grant(60)
        entries = [Entry("/p/b", "1"), Entry("/p/a", "鲲")]
        await etcd.put(entries[0], first)
        await etcd.put(entries[1], second)
        await etcd.put(entries[0], first)  # written again it is no younger
        assert await etcd.entries("/p/") == entries
        assert await etcd.entries("/q/") == []
        await etcd.revoke(first)
        assert await etcd.entries("/p/") == entries[1:]
        assert await etcd.keep_alive(first) == 0
        assert await etcd.keep_alive(second) == 60
        await etcd.revoke(first)  # gone already


async def test_a_lease_shorter_than_etcd_gives_is_as_long_as_it_gives(tmp_path: Path) -> None:
    slow = ("--heartbeat-interval", "500", "--election-timeout", "5000")
    async with (
        etcd_server(tmp_path, *slow) as server,
        EtcdClient(Etcd(endpoints=(server.url,)), 5) as etcd,
    ):
        assert (await etcd.grant(2)).ttl_s == 8


async def test_a_watch_tells_at_once_and_at_every_change(tmp_path: Path) -> None:
    async with (
        etcd_server(tmp_path) as server,
        EtcdClient(Etcd(endpoints=(server.url,)), 5) as etcd,
    ):
        lease, changes = await etcd.grant(60), etcd.changes("/p/")
        async with asyncio.timeout(20):
            await anext(changes)
            await etcd.put(Entry("/p/a", ""), lease)
            await anext(changes)
            await etcd.revoke(lease)
            await anext(changes)
            await server.kill()
            with pytest.raises(EtcdError, match=server.url):
                await anext(changes)


async def test_a_user_is_let_in_and_again_after_etcd_forgot_its_token(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text(f"{PASSWORD}\n", encoding="utf-8")
    async with etcd_server(tmp_path) as server:
        await server.have_users("gateway", PASSWORD)
        settings: dict[str, Any] = {
            "endpoints": [server.url],
            "user": "gateway",
            "password_file": secret,
        }
        one = candidate("a", **settings)
        async with running(one):
            await holder_of([one])
            await server.kill()
            await until(lambda: not one.election.holding)
            await server.start()
            await holder_of([one])
            await until(lambda: one.election.etcd_answers)
        assert not any("password" in line or "token" in line for line in one.told)


@pytest.mark.parametrize("given", ["another", None])
async def test_a_wrong_password_or_none_is_one_line(tmp_path: Path, given: str | None) -> None:
    secret = tmp_path / "password"
    secret.write_text(given or "")
    user: dict[str, Any] = {"user": "gateway", "password_file": secret} if given else {}
    async with etcd_server(tmp_path) as server:
        await server.have_users("gateway", PASSWORD)
        one = candidate("a", endpoints=[server.url], **user)
        async with running(one):
            await until(lambda: bool(one.told))
            await asyncio.sleep(1.2)  # further attempts
        (line,) = one.told
        reason = (
            "authentication failed, invalid user ID or password" if given else "user name is empty"
        )
        assert line == f"etcd: {server.url}: {reason}; requests are answered all the same"


async def test_both_sides_show_certificates(tmp_path: Path) -> None:
    files = certificates(tmp_path)
    both = tmp_path / "client.both"
    both.write_text(files["client.pem"].read_text() + files["client.key"].read_text())
    tls = ("--cert-file", str(files["server.pem"]), "--key-file", str(files["server.key"]))
    ours = ("--client-cert-auth", "--trusted-ca-file", str(files["ca.pem"]))
    async with etcd_server(tmp_path, *tls, *ours, scheme="https") as server:
        wrong = candidate("a", endpoints=[server.url], ca_file=files["ca.pem"])
        right = candidate("b", endpoints=[server.url], ca_file=files["ca.pem"], cert_file=both)
        async with running(wrong, right):
            await holder_of([right])
            await until(lambda: bool(wrong.told))
            assert wrong.told[0].startswith(f"etcd: {server.url}: ")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"user": "u", "password_file": "none"}, "No such file"),
        ({"user": "u", "password_file": "empty"}, "its first line is no password"),
        ({"user": "u", "password_file": "."}, "directory"),
        ({"ca_file": "none"}, r"gateway\.etcd\.ca_file, cert_file: No such file"),
        ({"cert_file": "empty"}, r"gateway\.etcd\.ca_file, cert_file: "),
    ],
)
def test_files_that_cannot_be_used_are_said_at_the_start(
    tmp_path: Path, settings: dict[str, str], said: str
) -> None:
    (tmp_path / "empty").write_text("")
    placed: dict[str, Any] = {
        key: tmp_path / value if key.endswith("file") else value for key, value in settings.items()
    }
    with pytest.raises(UsageError, match=said):
        EtcdClient(Etcd(endpoints=("http://h:1",), **placed), 1)
