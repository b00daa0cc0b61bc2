"""What an election does with its hook, and what it does when that fails. A real etcd."""

from pathlib import Path

import pytest

from tests.gateway.electing import candidate, holder_of, hook, running, runs, until
from tests.gateway.etcd_server import etcd_server
from tunan.errors import UsageError

FAILS_AT_A = 'if [ "$TUNAN_GATEWAY $1" = "a acquire" ]; then echo no such device >&2; exit 7; fi'


async def test_who_cannot_acquire_lets_another_try_and_stays_away(tmp_path: Path) -> None:
    async with etcd_server(tmp_path) as server:
        failing = candidate("a", endpoints=[server.url], hook=hook(tmp_path, FAILS_AT_A))
        other = candidate("b", endpoints=[server.url], hook=hook(tmp_path, FAILS_AT_A))
        async with running(failing):
            await until(lambda: failing.election.hook_failures["acquire"] == 1)
            async with running(other):
                assert await holder_of([failing, other]) is other
        assert failing.told[0] == (
            "hook acquire failed: no such device; another gateway may try, and this one again later"
        )
        assert failing.election.takeovers == 0
        assert runs(tmp_path)[:3] == ["a release", "a acquire", "a release"]


async def test_it_tries_again_after_a_while(tmp_path: Path) -> None:
    more = f'[ "$1" = release ] || [ "$(grep -c acquire {tmp_path}/hooks)" -gt 1 ]'
    async with etcd_server(tmp_path) as server:
        one = candidate("a", endpoints=[server.url], hook=hook(tmp_path, more), give_way_s=0.2)
        async with running(one):
            await holder_of([one])
        assert one.election.hook_failures["acquire"] == 1


async def test_a_hook_that_hangs_is_ended_and_counts_as_failed(tmp_path: Path) -> None:
    hangs = hook(tmp_path, '[ "$1" = release ] || sleep 1000')
    async with etcd_server(tmp_path) as server:
        one = candidate("a", endpoints=[server.url], hook=hangs, hook_timeout_s=3)
        async with running(one):
            await until(lambda: one.election.hook_failures["acquire"] > 0)
            assert any("hook acquire failed: it took longer than 3 s" in line for line in one.told)


async def test_a_release_that_fails_is_told_and_the_address_moves_all_the_same(
    tmp_path: Path,
) -> None:
    fails = hook(tmp_path, '[ "$1" = acquire ]')
    async with etcd_server(tmp_path) as server:
        first = candidate("a", endpoints=[server.url], hook=fails)
        second = candidate("b", endpoints=[server.url])
        async with running(first):
            await holder_of([first])
            async with running(second):
                first.leave.set()
                await first.election.left.wait()
                await holder_of([second])
        assert first.told[-1] == ("hook release failed, so the address may still be here: status 1")
        assert first.election.hook_failures["release"] == 2


async def test_a_hook_that_is_no_program_is_said_at_the_start() -> None:
    with pytest.raises(UsageError, match=r"gateway\.etcd\.hook: no program /no/such that may"):
        candidate("a", endpoints=["http://h:1"], hook=["/no/such"])
