"""The process that runs the hook: it releases what its gateway can no longer look after."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gateway.electing import hook, runs, until
from tunan.config.etcd import Etcd
from tunan.gateway.hook import Hook
from tunan.gateway.hook_process import clock

SOMEWHERE = ("http://h:1",)


@contextlib.asynccontextmanager
async def made(command: list[str]) -> AsyncIterator[Hook]:
    one = Hook(Etcd(endpoints=SOMEWHERE, hook=tuple(command), hook_timeout_s=60), "a")
    try:
        yield one
    finally:
        await one.close()


def process_of(one: Hook) -> int:
    assert one._process is not None
    return one._process.pid


async def test_what_is_acquired_is_kept_as_long_as_it_is_said_and_then_released(
    tmp_path: Path,
) -> None:
    async with made(hook(tmp_path)) as one:
        assert (await one.acquire(clock() + 1000)).ok
        one.keep(clock() + 2000)
        assert runs(tmp_path) == ["a acquire"]
        one.keep(clock() - 1)  # as time does that passes
        await until(lambda: one.overtaken.is_set())
        assert runs(tmp_path) == ["a acquire", "a release"]
    assert runs(tmp_path) == ["a acquire", "a release"]


async def test_it_is_released_when_the_gateway_is_gone(tmp_path: Path) -> None:
    """Its standard input ends then, whatever ended the gateway."""
    async with made(hook(tmp_path)) as one:
        assert (await one.acquire(clock() + 1000)).ok
    assert runs(tmp_path) == ["a acquire", "a release"]


async def test_signals_to_the_gateways_group_do_not_end_it(tmp_path: Path) -> None:
    async with made(hook(tmp_path)) as one:
        assert (await one.acquire(clock() + 1000)).ok
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(process_of(one), number)
        assert (await one.release()).ok
    assert runs(tmp_path) == ["a acquire", "a release"]


async def test_an_acquire_that_is_no_longer_wanted_is_ended_and_released(tmp_path: Path) -> None:
    async with made(hook(tmp_path, '[ "$1" = release ] || sleep 1000')) as one:
        acquiring = asyncio.create_task(one.acquire(clock() + 1000))
        await until(lambda: runs(tmp_path) == ["a acquire"])
        one.keep(clock() - 1)
        assert not (await acquiring).ok
        await until(lambda: runs(tmp_path) == ["a acquire", "a release"])


async def test_an_acquire_that_comes_too_late_is_not_begun(tmp_path: Path) -> None:
    async with made(hook(tmp_path)) as one:
        outcome = await one.acquire(clock() - 1)
        assert (outcome.ok, outcome.said) == (False, "it came too late")
    assert runs(tmp_path) == []


async def test_if_it_is_killed_that_is_noticed_and_another_one_releases(tmp_path: Path) -> None:
    async with made(hook(tmp_path)) as one:
        assert (await one.acquire(clock() + 1000)).ok
        os.kill(process_of(one), signal.SIGKILL)
        await until(lambda: one.overtaken.is_set())
        assert (await one.release()).ok
    assert runs(tmp_path) == ["a acquire", "a release"]


async def test_no_shell_reads_the_command(tmp_path: Path) -> None:
    script = tmp_path / "hook"
    script.write_text(f'#!/bin/sh\nprintf "%s|" "$@" > {tmp_path}/words\n')
    script.chmod(0o755)
    async with made([str(script), "$(touch x); `id`", "a b"]) as one:
        assert (await one.release()).ok
    assert (tmp_path / "words").read_text() == "$(touch x); `id`|a b|release|"


async def test_what_the_hook_leaves_running_is_not_waited_for(tmp_path: Path) -> None:
    """As `arping` that announces an address for a few seconds more."""
    async with made(hook(tmp_path, f"sleep 1000 & echo $! > {tmp_path}/pid; echo done")) as one:
        outcome = await one.acquire(clock() + 1000)
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        assert (outcome.ok, outcome.said) == (True, "done")
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


async def test_only_the_end_of_what_it_writes_is_kept(tmp_path: Path) -> None:
    async with made(hook(tmp_path, "seq 100000; printf '\\377 last'; exit 3")) as one:
        outcome = await one.release()
    assert not outcome.ok
    assert outcome.said.endswith("� last")
    assert len(outcome.said) == 200


async def test_without_a_hook_nothing_is_run() -> None:
    async with made([]) as one:
        assert (await one.acquire(clock())).ok
        assert (await one.release()).ok
    assert one._process is None


@pytest.mark.parametrize("action", ["acquire", "release"])
async def test_a_program_that_went_away_is_a_hook_that_failed(tmp_path: Path, action: str) -> None:
    async with made(hook(tmp_path)) as one:
        (tmp_path / "hook").unlink()
        outcome = await (one.acquire(clock() + 1000) if action == "acquire" else one.release())
        assert (outcome.ok, outcome.said) == (False, "No such file or directory")
