"""The hook that moves the shared address, run by a process of its own (hook_process.py)."""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from tunan.config.etcd import Etcd
from tunan.errors import UsageError
from tunan.gateway import hook_process
from tunan.gateway.hook_process import ACQUIRE, LEASE, RELEASE, UNTIL

GRACE_S = 2.0  # for the process to answer beyond the hook's own time


@dataclass(frozen=True)
class Outcome:
    """How one run of the hook ended; `said` is the end of what it wrote."""

    ok: bool
    said: str = ""


class Hook:
    """`acquire` and `release`; without a command both do nothing and succeed.

    `overtaken` is set when the process released by itself, or died: what was acquired is gone.
    """

    def __init__(self, settings: Etcd, name: str) -> None:
        """Raises `UsageError` if the hook is no program that can be run."""
        self._command = settings.hook
        self._limit_s = settings.hook_timeout_s
        self._environment = {**os.environ, "TUNAN_GATEWAY": name}
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._answers: list[asyncio.Future[Outcome]] = []
        self.overtaken = asyncio.Event()
        if self._command and shutil.which(self._command[0]) is None:
            raise UsageError(f"gateway.etcd.hook: no program {self._command[0]} that may be run")

    async def acquire(self, until: float) -> Outcome:
        """Takes the address, for as long as `keep` says."""
        self.overtaken.clear()
        await self._started()
        self.keep(until)
        return await self._order(ACQUIRE)

    async def release(self) -> Outcome:
        """Gives it away; harmless where it is not held."""
        await self._started()
        outcome = await self._order(RELEASE)
        self.overtaken.clear()
        return outcome

    def keep(self, until: float) -> None:
        """What is acquired may be kept until then (`hook_process.clock`)."""
        self._write(f"{UNTIL} {until}")

    def lease(self, how: dict[str, Any] | None) -> None:
        """How the process gives the lease back after this one was killed; None: there is none."""
        self._write(f"{LEASE} {json.dumps(how)}")

    async def close(self) -> None:
        """Ends the process, which releases first if that has not been done."""
        if self._process is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), self._limit_s + GRACE_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        if self._reader is not None:
            await self._reader

    async def _started(self) -> None:
        if not self._command or self._process is not None:
            return
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", hook_process.__file__, str(self._limit_s), *self._command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment,
            start_new_session=True,
        )
        self._reader = asyncio.create_task(self._read(self._process))

    async def _order(self, action: str) -> Outcome:
        if not self._command:
            return Outcome(ok=True)
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        self._write(action)
        try:
            # Another order may still run before this one.
            async with asyncio.timeout(2 * self._limit_s + GRACE_S):
                return await asyncio.shield(answer)
        except TimeoutError:
            return Outcome(ok=False, said="the process that runs it does not answer")

    def _write(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(f"{line}\n".encode("ascii"))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None  # noqa: S101  # it is a pipe
        async for line in process.stdout:
            self._take(json.loads(line))
        await process.wait()
        # Nobody watches over what is held any more: it has to be given away, by a new process.
        self._process = None
        self.overtaken.set()
        while self._answers:
            self._answers.pop(0).set_result(Outcome(ok=False, said="its process is gone"))

    def _take(self, answer: dict[str, Any]) -> None:
        if answer["ordered"] and self._answers:
            self._answers.pop(0).set_result(Outcome(answer["ok"], answer["said"]))
        else:
            self.overtaken.set()
