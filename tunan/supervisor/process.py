"""The engine's process group: started, watched through pidfds, stopped to the last process."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tunan.supervisor.environment import with_users_choice

LAUNCHER = "tunan.engine.launcher"
SUPERVISOR_PID = "TUNAN_SUPERVISOR_PID"
STOP_TIMEOUT_S = 15.0
POLL_S = 0.02


def launcher_command(arguments: Sequence[str]) -> list[str]:
    """The command line that starts the engine with this interpreter.

    `-P`: else Python files in the directory `tunan` was called from, a checkpoint's perhaps,
    would be imported in place of installed modules.
    """
    return [sys.executable, "-P", "-m", LAUNCHER, *arguments]


class EngineProcess:
    """One run of the launcher and everything below it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._watch(process.pid, "the API server process")

    @classmethod
    async def start(
        cls, arguments: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> "EngineProcess":
        """Starts it in a process group of its own, stdout and stderr into `log`."""
        with log.open("ab") as sink:
            process = await asyncio.create_subprocess_exec(
                *launcher_command(arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env={
                    **with_users_choice(environment, os.environ),
                    SUPERVISOR_PID: str(os.getpid()),
                },
                # A group of its own: a Ctrl-C at the terminal must reach only the supervisor,
                # which drains before it stops the engine.
                start_new_session=True,
            )
        return cls(process)

    @property
    def pid(self) -> int:
        """Of the API server process, which leads the group."""
        return self._process.pid

    async def died(self) -> str:
        """Returns once any process of the engine has ended, saying which and how."""
        return await asyncio.shield(self._died)

    def watch_descendants(self) -> None:
        """From now on the end of any process below counts too (EngineCore, workers)."""
        for pid in descendants(self.pid):
            title = _title(pid)
            if "resource_tracker" not in title:
                self._watch(pid, title)

    def _watch(self, pid: int, title: str) -> None:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self._report(f"{title} ended")
            return
        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            self._report(f"{title} (pid {pid}) ended")

        loop.add_reader(descriptor, ended)

    def _report(self, what: str) -> None:
        if not self._died.done():
            self._died.set_result(what)

    async def exit_status(self, timeout_s: float) -> int | None:
        """Exit status of the API server process (negative: signal), None if it still runs."""
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(self._process.wait(), timeout_s)
        return None

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """SIGTERM, and after `timeout_s` SIGKILL to the whole group; returns when all are gone."""
        if self._process.returncode is None:
            self._signal_all(lambda: os.kill(self.pid, signal.SIGTERM))
            await self.exit_status(timeout_s)
        await self.kill()

    async def kill(self) -> None:
        """SIGKILL to the whole group, now."""
        self._signal_all(lambda: os.killpg(self.pid, signal.SIGKILL))
        await self._process.wait()
        while _group_alive(self.pid):  # noqa: ASYNC110  # the kernel has no event for a group
            await asyncio.sleep(POLL_S)

    @staticmethod
    def _signal_all(send: Callable[[], None]) -> None:
        with contextlib.suppress(ProcessLookupError):
            send()


def descendants(pid: int) -> list[int]:
    """Process ids below `pid`, parents before children."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text(encoding="ascii").split():
                found += [int(child), *descendants(int(child))]
    return found


def _title(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return words.decode(errors="replace").strip()[:80] or f"process {pid}"
    return f"process {pid}"


def _group_alive(group: int) -> bool:
    """Whether a process of the group runs (zombies left to an absent init do not count)."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = (entry / "stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
            if int(fields[2]) == group and fields[0] not in "ZX":
                return True
    return False
