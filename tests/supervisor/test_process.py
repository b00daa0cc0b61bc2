"""Watching and stopping a process group, on real processes."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.serving import running
from tunan.supervisor.process import Ending, EngineProcess, descendants, launcher_command

# Ignores SIGTERM and has a child that does so too: the worst engine to stop.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1] + str(os.getpid()), "w").close()
time.sleep(60)
"""


async def start(tmp_path: Path) -> tuple[EngineProcess, list[int]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STUBBORN, f"{tmp_path}/", start_new_session=True
    )
    return EngineProcess(process), await asyncio.to_thread(started, tmp_path, 2)


def started(folder: Path, processes: int) -> list[int]:
    while len(files := list(folder.iterdir())) < processes:
        time.sleep(0.01)
    return [int(file.name) for file in files]


async def test_a_group_that_ignores_sigterm_is_killed_whole(tmp_path: Path) -> None:
    engine, pids = await start(tmp_path)
    await engine.stop(timeout_s=0.2)
    assert not [pid for pid in pids if running(pid)]


async def test_the_end_of_a_descendant_is_noticed(tmp_path: Path) -> None:
    engine, pids = await start(tmp_path)
    (child,) = descendants(engine.pid)
    assert sorted([engine.pid, child]) == sorted(pids)
    engine.watch_descendants()
    os.kill(child, signal.SIGKILL)
    assert f"(pid {child})" in (await asyncio.wait_for(engine.died(), 60)).process
    await engine.kill()


async def test_what_goes_down_with_the_process_itself_is_not_taken_for_the_cause(
    tmp_path: Path,
) -> None:
    engine, _ = await start(tmp_path)
    (child,) = descendants(engine.pid)
    engine.watch_descendants()
    for pid in (child, engine.pid):
        os.kill(pid, signal.SIGKILL)
    while running(child) or running(engine.pid):  # both are gone before the loop looks
        time.sleep(0.01)  # noqa: ASYNC251
    assert f"(pid {engine.pid})" in (await asyncio.wait_for(engine.died(), 60)).process
    await engine.kill()


BUSY = """
import subprocess, sys, time
with subprocess.Popen(["sleep", "0.5"]) as helper:
    open(sys.argv[1] + str(helper.pid), "w").close()
    helper.wait()
time.sleep(60)
"""


async def test_a_helper_program_may_end(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", BUSY, f"{tmp_path}/", start_new_session=True
    )
    engine = EngineProcess(process)
    (helper,) = await asyncio.to_thread(started, tmp_path, 1)
    engine.watch_descendants()
    while running(helper):  # noqa: ASYNC110  # another process
        await asyncio.sleep(0.01)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(engine.died(), 0.3)
    await engine.kill()


async def test_a_stopped_descendant_is_named_until_it_goes_on(tmp_path: Path) -> None:
    engine, _ = await start(tmp_path)
    (child,) = descendants(engine.pid)
    engine.watch_descendants()
    assert engine.stopped() == ""
    os.kill(child, signal.SIGSTOP)
    await until(lambda: engine.stopped() != "")
    assert f"(pid {child}) was stopped by a signal" in engine.stopped()
    os.kill(child, signal.SIGCONT)
    await until(lambda: engine.stopped() == "")
    await engine.kill()


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not what():  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.01)


async def test_the_end_of_the_process_itself_is_noticed(tmp_path: Path) -> None:
    engine, _ = await start(tmp_path)
    os.kill(engine.pid, signal.SIGKILL)
    ending = await asyncio.wait_for(engine.died(), 60)
    assert "the API server process" in ending.describe()
    assert await engine.exit_status(5) == -signal.SIGKILL
    await engine.kill()


async def test_a_signal_that_kills_the_process_itself_is_named(tmp_path: Path) -> None:
    for number in range(5):  # asyncio asks the kernel too, and may be first
        (folder := tmp_path / str(number)).mkdir()
        engine, _ = await start(folder)
        os.kill(engine.pid, signal.SIGKILL)
        assert (await asyncio.wait_for(engine.died(), 60)).killed
        await engine.kill()


SHARING = """
import os, sys, time
from multiprocessing.shared_memory import SharedMemory
kept = SharedMemory(create=True, size=1 << 20)
open(sys.argv[1] + kept.name, "w").close()
time.sleep(60)
"""


async def test_a_killed_engine_leaves_no_shared_memory(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SHARING, f"{tmp_path}/", start_new_session=True
    )
    engine = EngineProcess(process)
    (name,) = await asyncio.to_thread(names, tmp_path)
    assert (Path("/dev/shm") / name).exists()
    await engine.kill()
    assert not (Path("/dev/shm") / name).exists()


def names(folder: Path) -> list[str]:
    while not (files := list(folder.iterdir())):
        time.sleep(0.01)
    return [file.name for file in files]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (None, "EngineCore (pid 7) ended"),
        (1, "EngineCore (pid 7) ended with status 1"),
        (-9, "EngineCore (pid 7) was killed by SIGKILL, perhaps for lack of memory"),
        (-11, "EngineCore (pid 7) was killed by SIGSEGV"),
    ],
)
def test_an_ending_is_told_in_words(status: int | None, words: str) -> None:
    assert Ending("EngineCore (pid 7)", status).describe() == words


def test_python_files_where_tunan_was_called_from_are_not_imported(tmp_path: Path) -> None:
    (tmp_path / "http.py").write_text("raise SystemExit('imported from the working directory')")
    command = launcher_command(["--help"])
    done = subprocess.run(
        [*command[:2], "-c", "import http.client"], cwd=tmp_path, capture_output=True, check=False
    )
    assert (command[1], done.returncode) == ("-P", 0)


def test_of_an_engine_that_did_not_end_it_is_told_what_was_noticed() -> None:
    assert Ending("the engine", words="a stream stalled").describe() == "a stream stalled"
