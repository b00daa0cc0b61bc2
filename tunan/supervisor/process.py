"""The engine's process group: started, watched through pidfds, stopped to the last process."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tunan.supervisor.environment import with_users_choice

LAUNCHER = "tunan.engine.launcher"
SUPERVISOR_PID = "TUNAN_SUPERVISOR_PID"
API_SERVER = "the API server process"
STOP_TIMEOUT_S = 15.0
KILL_S = 60.0  # an NPU's driver may take its time to let a killed process go
STATUS_S = 1.0  # for the status of a process that has ended
POLL_S = 0.02
TRACKER = "resource_tracker"  # multiprocessing's, one for each family of spawned processes
TRACKER_S = 10.0  # one that has only just been started has Python to load first
VLLM_TITLE = "VLLM::"  # of every process of vLLM's own, each with another name
EXIT_CODE = 49  # field 52 of /proc/PID/stat, counted from the state
ZOMBIE, STOPPED = "Z", "T"  # the state (proc_pid_stat(5)); "t": by a debugger


def launcher_command(arguments: Sequence[str]) -> list[str]:
    """The command line that starts the engine with this interpreter.

    `-P`: else Python files in the directory `tunan` was called from, a checkpoint's perhaps,
    would be imported in place of installed modules.
    """
    return [sys.executable, "-P", "-m", LAUNCHER, *arguments]


@dataclass(frozen=True)
class Ending:
    """Which process of the engine ended, and how if that could be learnt.

    `status`: its exit status, negative for the signal that killed it. `words`: what to say of
    one that did not end, but does not answer either.
    """

    process: str
    status: int | None = None
    words: str = ""

    @property
    def killed(self) -> bool:
        """Whether a signal ended it."""
        return self.status is not None and self.status < 0

    def describe(self) -> str:
        """`the API server process (pid 5) was killed by SIGKILL, perhaps for lack of memory`."""
        if self.words:
            return self.words
        if self.status is None:
            return f"{self.process} ended"
        if self.status >= 0:
            return f"{self.process} ended with status {self.status}"
        name = signal.Signals(-self.status).name
        memory = ", perhaps for lack of memory" if name == "SIGKILL" else ""
        return f"{self.process} was killed by {name}{memory}"


class EngineProcess:
    """One run of the launcher and everything below it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._died: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._watched: dict[int, str] = {}
        self.left: tuple[int, ...] = ()
        self._killed = False
        self._watch(process.pid, API_SERVER)

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

    async def died(self) -> Ending:
        """Returns once any process of the engine has ended, saying which and how."""
        ending = await asyncio.shield(self._died)
        if ending.status is None and ending.process.startswith(API_SERVER):
            # asyncio has asked for its status before we could look.
            return replace(ending, status=await self.exit_status(STATUS_S))
        return ending

    def watch_descendants(self) -> None:
        """From now on the end of any process below counts too (EngineCore, workers)."""
        for pid in descendants(self.pid):
            title = _title(pid)
            if not self._is_passing(pid, title):
                self._watch(pid, title)

    def _is_passing(self, pid: int, title: str) -> bool:
        """Whether a process is only a helper: another program, or one just forked to become it."""
        just_forked = title.startswith(VLLM_TITLE) and title == _title(_parent(pid))
        return just_forked or TRACKER in title or _program(pid) != _program(self.pid)

    def _watch(self, pid: int, title: str) -> None:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self._report(Ending(title))
            return
        loop = asyncio.get_running_loop()
        self._watched[pid] = title

        def ended() -> None:
            self._watched.pop(pid, None)
            loop.remove_reader(descriptor)
            os.close(descriptor)
            if pid != self.pid and self._has_ended():
                # The kernel ends what is below with it: this one is only seen first.
                self._report(Ending(f"{API_SERVER} (pid {self.pid})", _status_of_zombie(self.pid)))
            self._report(Ending(f"{title} (pid {pid})", _status_of_zombie(pid)))

        loop.add_reader(descriptor, ended)

    def stopped(self) -> str:
        """Which of the watched processes a signal has stopped (SIGSTOP), in words; "" if none has.

        One that a debugger holds is in another state, and does not count.
        """
        for pid, title in self._watched.items():
            if _fields(pid)[:1] == [STOPPED]:
                return f"{title} (pid {pid}) was stopped by a signal"
        return ""

    def _has_ended(self) -> bool:
        """Whether the API server process has."""
        asked_for = not Path(f"/proc/{self.pid}").exists()
        return asked_for or _status_of_zombie(self.pid) is not None

    def _report(self, ending: Ending) -> None:
        if not self._died.done():
            self._died.set_result(ending)

    async def exit_status(self, timeout_s: float) -> int | None:
        """Exit status of the API server process (negative: signal), None if it still runs."""
        with contextlib.suppress(TimeoutError):
            # Not `wait_for`, which (3.11) lets a cancellation go if the process ends just then.
            async with asyncio.timeout(timeout_s):
                return await self._process.wait()
        return None

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """SIGTERM, and after `timeout_s` SIGKILL to the whole group; returns when all are gone."""
        if self._process.returncode is None:
            self._signal_all(lambda: os.kill(self.pid, signal.SIGTERM))
            await self.exit_status(timeout_s)
        await self.kill()

    async def kill(self) -> None:
        """SIGKILL to the whole group, now; returns when all are gone, but after `KILL_S` anyway.

        What is there then is in `left`: processes in a call of a driver that nothing breaks off.
        """
        if self._killed:
            return  # by now the group's number may be another's
        end = time.monotonic() + KILL_S
        await self._let_trackers_clean()
        self._signal_all(lambda: os.killpg(self.pid, signal.SIGKILL))
        await self.exit_status(KILL_S)
        # The kernel has no event for a group.
        while (left := _members(self.pid)) and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        self.left, self._killed = tuple(left), True

    async def _let_trackers_clean(self) -> None:
        """Kills all but multiprocessing's trackers, which then remove what the others left in
        /dev/shm and end: engine after engine would leave its message queues there.
        """
        if not any(map(_may_be_tracker, _members(self.pid))):
            return
        end = time.monotonic() + TRACKER_S
        while (members := _members(self.pid)) and time.monotonic() < end:
            for pid in members:
                if not _may_be_tracker(pid):
                    self._signal_all(partial(os.kill, pid, signal.SIGKILL))
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


def _status_of_zombie(pid: int) -> int | None:
    """The exit status of a process below us that has ended, while its parent has not asked."""
    fields = _fields(pid)
    with contextlib.suppress(IndexError, ValueError):
        if fields[0] == ZOMBIE:
            return os.waitstatus_to_exitcode(int(fields[EXIT_CODE]))
    return None


def _parent(pid: int) -> int:
    with contextlib.suppress(IndexError, ValueError):
        return int(_fields(pid)[1])
    return 0


def _fields(pid: int) -> list[str]:
    """Of /proc/PID/stat, from the state on; none if it is gone."""
    with contextlib.suppress(OSError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rsplit(")", 1)[1].split()
    return []


def _program(pid: int) -> str:
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{pid}/exe").readlink())
    return ""


def _title(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return words.decode(errors="replace").strip()[:80] or f"process {pid}"
    return f"process {pid}"


def _may_be_tracker(pid: int) -> bool:
    """Whether it is multiprocessing's tracker, or in `execve` and without a command line yet."""
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return not command or TRACKER.encode() in command
    return False


def _members(group: int) -> list[int]:
    """The processes of the group that run (zombies left to an absent init do not count)."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return []
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = (entry / "stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
            if int(fields[2]) == group and fields[0] not in "ZX":
                found.append(int(entry.name))
    return found
