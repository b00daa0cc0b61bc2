"""The election of the gateway that holds the shared address, by a real etcd."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.electing import Candidate, candidate, holder_of, hook, running, runs, until
from tests.gateway.etcd_server import EtcdServer, coded, etcd_server
from tunan.gateway.replica import Stage


def three(server: EtcdServer, **settings: Any) -> list[Candidate]:
    return [candidate(name, endpoints=[server.url], **settings) for name in "abc"]


async def test_one_of_three_holds_the_address(tmp_path: Path) -> None:
    async with etcd_server(tmp_path) as server:
        gateways = three(server)
        async with running(*gateways):
            holder = await holder_of(gateways)
            await until(
                lambda: all(len(one.election.describe()["gateways"]) == 3 for one in gateways)
            )
            assert [one.election.describe()["holder"] for one in gateways] == [holder.name] * 3
            assert sum(one.election.takeovers for one in gateways) == 1


async def test_the_next_holds_at_once_when_the_holder_leaves(tmp_path: Path) -> None:
    """The lease would last for a minute: that it is given back is what the next sees."""
    async with etcd_server(tmp_path) as server:
        gateways = three(server, hook=hook(tmp_path))
        async with running(*gateways):
            first = await holder_of(gateways)
            await until(lambda: len(first.election.describe()["gateways"]) == 3)
            first.leave.set()
            await first.election.left.wait()
            second = await holder_of(gateways)
            assert second is not first
            assert first.told[-1].endswith("any more: this gateway stops")
        acted = [run for run in runs(tmp_path) if run != f"{second.name} release"]
        given, taken = f"{first.name} release", f"{second.name} acquire"
        assert acted.index(taken) > len(acted) - 1 - acted[::-1].index(given)


async def test_the_hook_releases_first_then_acquires_then_releases(tmp_path: Path) -> None:
    """First, because a gateway that was killed may have left the address on its machine."""
    async with etcd_server(tmp_path) as server:
        alone = candidate("a", endpoints=[server.url], hook=hook(tmp_path))
        async with running(alone):
            await holder_of([alone])
        assert runs(tmp_path) == ["a release", "a acquire", "a release"]
        assert await server.keys() == []


async def test_a_holder_stands_down_while_etcd_is_away_and_one_holds_again(tmp_path: Path) -> None:
    async with etcd_server(tmp_path) as server:
        gateways = three(server, hook=hook(tmp_path), lease_s=4)
        async with running(*gateways):
            first = await holder_of(gateways)
            await server.kill()
            await until(lambda: bool(first.election.ended))
            assert not any(one.election.holding for one in gateways)
            assert first.election.describe()["holder"] is None
            assert first.told[-1].endswith("any more: its lease was not renewed in time")
            await until(lambda: runs(tmp_path).count(f"{first.name} release") >= 2)
            await asyncio.sleep(1)  # they ask again and again
            assert sum("etcd: " in line for line in first.told) <= 3
            await server.start()
            await holder_of(gateways)
            await until(lambda: all("etcd answers again" in one.told for one in gateways))


async def test_members_that_are_dead_or_silent_are_passed_over(tmp_path: Path) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    mute = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with mute, etcd_server(tmp_path) as server:
        port = mute.sockets[0].getsockname()[1]
        endpoints = ["http://127.0.0.1:1", f"http://127.0.0.1:{port}", server.url]
        one = candidate("a", endpoints=endpoints)
        async with running(one):
            await holder_of([one])
            assert [line for line in one.told if "etcd" in line] == []


async def test_answers_that_take_longer_than_a_round_keep_the_lease_all_the_same(
    tmp_path: Path,
) -> None:
    async with etcd_server(tmp_path) as server, slow(server, 1.2) as url:
        one = candidate("a", endpoints=[url], lease_s=4)
        async with running(one):
            await holder_of([one])
            await asyncio.sleep(6)
            assert one.election.holding
            assert not one.election.ended


@contextlib.asynccontextmanager
async def slow(server: EtcdServer, seconds: float) -> AsyncIterator[str]:
    """An address at which it answers, but so much later."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", server.ports[0])

        async def later() -> None:
            while data := await back.read(1 << 16):
                asyncio.get_running_loop().call_later(seconds, writer.write, data)

        answering = asyncio.create_task(later())
        while data := await reader.read(1 << 16):
            forth.write(data)
        answering.cancel()
        forth.close()
        writer.close()

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with proxy:
        yield f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"


async def test_without_etcd_one_line_says_so_and_how_it_goes_on() -> None:
    one = candidate("a", endpoints=["http://127.0.0.1:1"])
    async with running(one):
        await until(lambda: not one.election.etcd_answers)
        await asyncio.sleep(1.2)  # further attempts
        assert one.told == [
            "etcd: http://127.0.0.1:1: Connection refused; requests are answered all the same"
        ]
        assert "refused" in one.election.describe()["problem"]


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\n\r\n<html>", b"HTTP/1.1 200 OK\r\n\r\n{}"])
async def test_what_is_no_etcd_is_named(answer: bytes) -> None:
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        writer.write(answer)
        await writer.drain()
        writer.close()

    page = await asyncio.start_server(other, "127.0.0.1", 0)
    async with page:
        url = f"http://127.0.0.1:{page.sockets[0].getsockname()[1]}"
        one = candidate("a", endpoints=[url])
        async with running(one):
            await until(lambda: bool(one.told))
            assert "is no etcd" in one.told[0] or "not what etcd answers" in one.told[0]


async def test_a_gateway_without_a_ready_replica_gives_way_to_one_that_has(tmp_path: Path) -> None:
    async with etcd_server(tmp_path) as server:
        first = candidate("a", endpoints=[server.url], give_way_s=0.1)
        second = candidate("b", endpoints=[server.url], ready=False)
        async with running(first, second):
            await until(lambda: first.election.holding)
            first.replica.lose("killed")
            await asyncio.sleep(1)
            assert first.election.holding  # nobody has one: a 503 is better than no answer
            second.replica.move(Stage.READY)
            await until(lambda: second.election.holding)
            assert first.election.ended == {"unready": 1}
            first.replica.move(Stage.READY)
            await until(lambda: len(second.election.describe()["gateways"]) == 2)
            assert second.election.holding


async def test_a_key_that_somebody_deletes_ends_the_holding(tmp_path: Path) -> None:
    async with etcd_server(tmp_path) as server:
        one = candidate("a", endpoints=[server.url])
        async with running(one):
            await holder_of([one])
            (key,) = await server.keys()
            assert base64.b64decode(key).startswith(b"/tunan/gateway/")
            await server.ask("kv/deleterange", key=key)
            await until(lambda: one.election.ended == {"removed": 1})
            await until(lambda: one.election.takeovers == 2)


async def test_a_lease_that_etcd_does_not_know_ends_the_holding(tmp_path: Path) -> None:
    async with etcd_server(tmp_path) as server:
        one = candidate("a", endpoints=[server.url])
        async with running(one):
            await holder_of([one])
            (lease,) = (await server.ask("lease/leases"))["leases"]
            await server.ask("lease/revoke", ID=lease["ID"])
            await until(lambda: one.election.takeovers == 2)
            assert set(one.election.ended) <= {"removed", "lease"}


async def test_the_next_still_notices_after_etcd_was_compacted(tmp_path: Path) -> None:
    async with etcd_server(tmp_path) as server:
        gateways = three(server)
        async with running(*gateways):
            first = await holder_of(gateways)
            await until(lambda: len(first.election.describe()["gateways"]) == 3)
            for number in range(20):
                await server.ask("kv/put", key=coded("/other"), value=coded(str(number)))
            revision = (await server.ask("kv/range", key=coded("/other")))["header"]["revision"]
            await server.ask("kv/compaction", revision=revision, physical=True)
            first.leave.set()
            await first.election.left.wait()
            assert await holder_of(gateways) is not first


async def test_other_prefixes_are_other_addresses(tmp_path: Path) -> None:
    async with etcd_server(tmp_path) as server:
        one = candidate("a", endpoints=[server.url], prefix="/a")
        other = candidate("b", endpoints=[server.url], prefix="/ab")
        async with running(one, other):
            await until(lambda: one.election.holding and other.election.holding)


async def test_what_others_keep_under_the_prefix_breaks_nothing(tmp_path: Path) -> None:
    """The oldest key holds, whoever wrote it; that of no gateway is named as it is."""
    async with etcd_server(tmp_path) as server:
        strange = coded("/tunan/gateway/x")
        await server.ask("kv/put", key=strange, value=coded("[1"))
        one = candidate("a", endpoints=[server.url])
        async with running(one):
            await until(lambda: one.told == ["the shared address is that of /tunan/gateway/x"])
            await server.ask("kv/deleterange", key=strange)
            await holder_of([one])
