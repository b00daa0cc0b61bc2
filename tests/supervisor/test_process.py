"""Watching and stopping a process group, on real processes."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.serving import running
from tunan.supervisor.process import EngineProcess, descendants, launcher_command

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
    return EngineProcess(process), await asyncio.to_thread(both_started, tmp_path)


def both_started(folder: Path) -> list[int]:
    while len(files := list(folder.iterdir())) < 2:
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
    assert f"(pid {child}) ended" in await asyncio.wait_for(engine.died(), 10)
    await engine.kill()


async def test_the_end_of_the_process_itself_is_noticed(tmp_path: Path) -> None:
    engine, _ = await start(tmp_path)
    os.kill(engine.pid, signal.SIGKILL)
    assert "API server" in await asyncio.wait_for(engine.died(), 10)
    assert await engine.exit_status(5) == -signal.SIGKILL
    await engine.kill()


def test_python_files_where_tunan_was_called_from_are_not_imported(tmp_path: Path) -> None:
    (tmp_path / "http.py").write_text("raise SystemExit('imported from the working directory')")
    command = launcher_command(["--help"])
    done = subprocess.run(
        [*command[:2], "-c", "import http.client"], cwd=tmp_path, capture_output=True, check=False
    )
    assert (command[1], done.returncode) == ("-P", 0)
