"""The program that runs the hook for a gateway. It outlives a gateway that is killed.

    python -I hook_process.py LIMIT_S PROGRAM ARGUMENT...

Orders come as lines on standard input: `acquire`, `release`, and `until T`, how long what was
acquired may be kept (seconds of CLOCK_BOOTTIME, which no change of the date moves). Whatever is
acquired is released when T passes without a later one, and when standard input ends: a gateway
that was killed, or stopped by SIGSTOP, would leave its address on this machine while another
machine takes it. `lease JSON` says how a lease of etcd is given back (`revoke`) when standard
input has ended and nothing is held, so that the next gateway need not wait until it runs out;
`lease null`: not any more. Each run is answered by a line of JSON: `action`, `ok`, `said` (the
end of what it wrote), `ordered` (false: begun here). It uses the standard library only: it starts
at once and takes little memory.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Any

ACQUIRE, RELEASE, UNTIL, LEASE = "acquire", "release", "until", "lease"
ORDERS, ANSWERS, LOG = 0, 1, 2  # descriptors
NAP_S = 0.1  # timers stand still while a machine sleeps, and the clock is read again after it
REVOKE_S = 1.0  # for one member of etcd
SHOWN = 200  # characters of what the hook wrote


def clock() -> float:
    """Seconds since the machine was started, those that it slept included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass
class Run:
    """A hook that runs; `ends` is when it is killed."""

    action: str
    ordered: bool
    process: "subprocess.Popen[bytes]"
    output: IO[bytes]
    pidfd: int
    ends: float

    def kill(self) -> None:
        """Ends the hook and what it started, but not what it put into another session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


@dataclass
class Keeper:
    """Runs one hook at a time, in the order of the orders."""

    command: Sequence[str]
    limit_s: float
    until: float = 0.0
    held: bool = False
    ended: bool = False  # no more orders will come
    lease: dict[str, Any] | None = None
    let_go: bool = True  # False: what was acquired may still be here
    orders: "deque[str]" = field(default_factory=deque)
    running: Run | None = None
    _unread: bytes = b""

    def work(self) -> None:
        """Until there are no more orders and nothing is held."""
        while self.running or self.orders or self.held or not self.ended:
            if self.running is None:
                self._next()
            self._wait()
            if self.running is not None:
                self._look(self.running)

    def _next(self) -> None:
        """What is held too long goes first."""
        late = self.ended or clock() >= self.until
        if self.held and late and RELEASE not in self.orders:
            self._start(RELEASE, ordered=False)
        elif self.orders:
            action = self.orders.popleft()
            if action == ACQUIRE and self._unwanted():
                self._answer(action, ordered=True, ok=False, said="it came too late")
            else:
                self._start(action, ordered=True)

    def _start(self, action: str, *, ordered: bool) -> None:
        self.held = self.held or action == ACQUIRE
        output = tempfile.TemporaryFile()  # noqa: SIM115  # a pipe may be held open by a grandchild
        try:
            process = subprocess.Popen(
                [*self.command, action],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except OSError as error:
            output.close()
            self._answer(action, ordered=ordered, ok=False, said=str(error.strerror))
            return
        pidfd = os.pidfd_open(process.pid)
        self.running = Run(action, ordered, process, output, pidfd, clock() + self.limit_s)

    def _look(self, run: Run) -> None:
        """Kills a hook that takes too long; an `acquire` also when it is no longer wanted."""
        status = run.process.poll()
        if status is not None:
            self._finish(run, status)
        elif clock() >= run.ends or (run.action == ACQUIRE and self._unwanted()):
            run.kill()

    def _unwanted(self) -> bool:
        return bool(self.orders) or self.ended or clock() >= self.until

    def _finish(self, run: Run, status: int) -> None:
        run.output.seek(0)
        written = run.output.read().decode("utf-8", "replace").split()
        said = " ".join(written)[-SHOWN:]
        if status < 0 and clock() >= run.ends:
            said = f"it took longer than {self.limit_s:g} s"
        os.close(run.pidfd)
        run.output.close()
        self.running = None
        said = said or f"status {status}"
        self._answer(run.action, ordered=run.ordered, ok=status == 0, said=said)

    def _answer(self, action: str, *, ordered: bool, ok: bool, said: str) -> None:
        if action == RELEASE:
            self.held = False  # if it failed too: nothing more can be done
            self.let_go = ok
        answer = {"action": action, "ok": ok, "said": said, "ordered": ordered}
        _tell(ANSWERS, json.dumps(answer))
        if self.ended:
            _tell(LOG, f"tunan: the gateway is gone; hook {action}: {'done' if ok else said}")

    def _wait(self) -> None:
        """For orders, for the end of the hook, or a moment."""
        watched = [] if self.ended else [ORDERS]
        if self.running is not None:
            watched.append(self.running.pidfd)
        # With nothing to watch over, only an order can change anything.
        idle = not self.held and self.running is None and not self.orders
        nap_s = min(NAP_S, max(0.0, self.until - clock())) if self.held else NAP_S
        readable, _, _ = select.select(watched, [], [], None if idle and watched else nap_s)
        if ORDERS in readable:
            self._read()

    def _read(self) -> None:
        data = os.read(ORDERS, 4096)
        if not data:
            self.ended = True
            self.orders.clear()
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            order, _, value = line.decode("ascii").partition(" ")
            if order == UNTIL:
                self.until = float(value)
            elif order == LEASE:
                self.lease = json.loads(value)
            else:
                self.orders.append(order)


def revoke(lease: dict[str, Any]) -> bool:
    """Whether a member of etcd has given the lease back; one that does not answer costs a second.

    `lease`: `urls` of the members, `id`, `token` (or ""), `ca_file` and `cert_file` (or null).
    """
    import ssl  # only a gateway that is killed needs them
    import urllib.request

    headers = {"Content-Type": "application/json"}
    if lease["token"]:
        headers["Authorization"] = lease["token"]
    body = json.dumps({"ID": lease["id"]}).encode()
    with contextlib.suppress(OSError):  # a file that is gone
        context = ssl.create_default_context(cafile=lease["ca_file"])
        if lease["cert_file"]:
            context.load_cert_chain(lease["cert_file"])
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        for url in lease["urls"]:
            request = urllib.request.Request(f"{url}/v3/lease/revoke", body, headers)  # noqa: S310
            with (
                contextlib.suppress(OSError, ValueError),
                opener.open(request, timeout=REVOKE_S) as answer,
            ):
                return bool(answer.status == 200)
    return False


def _tell(descriptor: int, line: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it any more
        os.write(descriptor, f"{line}\n".encode())


def main() -> None:
    """Runs until its gateway is gone and nothing is held."""
    # Handlers, because a signal that is ignored would be ignored by the hook too. Whoever stops the
    # gateway's whole group means the gateway, whose end is noticed here.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    keeper = Keeper(sys.argv[2:], float(sys.argv[1]))
    keeper.work()
    if keeper.lease and keeper.let_go and revoke(keeper.lease):
        _tell(LOG, "tunan: the gateway is gone; its lease is given back to etcd")


if __name__ == "__main__":
    main()
