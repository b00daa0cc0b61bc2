"""Runs the real `tunan serve` as a process, for tests that talk to it."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, IncompleteRead
from pathlib import Path
from typing import Any

PATIENCE_S = 180.0
# Small, so that tests can share a machine.
SMALL = ("--kv-cache-gib", "0.05", "--max-model-len", "512", "--enforce-eager")


@dataclass
class Answer:
    """A whole HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body parsed."""
        return json.loads(self.body)


@dataclass
class Served:
    """A running `tunan serve` with its JSON events, and what it said on stderr."""

    process: subprocess.Popen[str]
    stderr: Path
    model: str = ""
    url: str = ""
    log: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)

    def next_event(self) -> dict[str, Any]:
        """The next event the server reports; fails if it ended instead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"tunan serve ended: {self.stderr.read_text()}"
        event: dict[str, Any] = json.loads(line)
        self.events.append(event)
        return event

    def wait_for(self, name: str) -> dict[str, Any]:
        """Events until the one called `name`."""
        while (event := self.next_event())["event"] != name:
            pass
        return event

    def wait_until_ready(self) -> dict[str, Any]:
        """The `ready` event."""
        return self.wait_for("ready")

    def ask(self, path: str, body: object = None, **headers: str) -> Answer:
        """One request; error statuses are answers too."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {**headers})
        if data is not None:
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                return Answer(response.status, dict(response.headers), response.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, dict(error.headers), error.read())

    def complete(self, **options: object) -> Answer:
        """A greedy completion of three tokens as prompt."""
        body = {"model": self.model, "prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0}
        return self.ask("/v1/completions", body | options)

    def stream(self, tokens: int, **options: object) -> Generator[str, None, None]:
        """The text of each chunk of a streamed greedy completion, as it comes."""
        host, port = self.url.removeprefix("http://").split(":")
        connection = HTTPConnection(host, int(port), timeout=PATIENCE_S)
        body = {"model": self.model, "prompt": [5, 6, 7], "max_tokens": tokens,
                "temperature": 0, "ignore_eos": True, "stream": True, **options}  # fmt: skip
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        try:
            while chunk := response.read1():
                yield chunk.decode()
        finally:
            # A plain close would wait for the rest of the body.
            if connection.sock is not None:
                connection.sock.shutdown(socket.SHUT_RDWR)
            response.close()
            connection.close()

    def engine_processes(self) -> list[int]:
        """Every process below this `tunan serve`."""
        from tunan.supervisor.process import descendants

        return descendants(self.process.pid)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends the signal and returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


TUNAN = (sys.executable, "-m", "tunan")


@contextlib.contextmanager
def serving(
    model: Path,
    folder: Path,
    *options: str,
    tunan: Sequence[str] = TUNAN,
    environment: Mapping[str, str] = os.environ,
    size: Sequence[str] = SMALL,
) -> Iterator[Served]:
    """Starts `tunan serve` on a free port; nothing of it is left afterwards.

    `tunan` is the command to run it by, in `environment`; `size` says how large the engine is.
    """
    command = [*tunan, "serve", str(model), "--json", "--port", "0", *size, *options]
    environment = {
        **environment,
        "XDG_STATE_HOME": str(folder / "state"),
        # One cache for all servers of a test run, as a user has.
        "XDG_CACHE_HOME": str(folder.parent / "tunan-test-cache"),
    }
    stderr = folder / "stderr.txt"
    with stderr.open("w") as sink:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=sink, text=True, env=environment
        )
    served = Served(process, stderr)
    try:
        first = served.wait_for("starting")
        served.url, served.log, served.model = first["address"], first["log"], first["model"]
        yield served
    finally:
        below = served.engine_processes()
        process.kill()
        process.wait()
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if process.stdout is not None:
            process.stdout.close()


def only_one_start(model: Path, folder: Path) -> tuple[str, str]:
    """Options with which the first failure of the engine is the end of the service."""
    file = folder / "one-start.yaml"
    file.write_text(f"model: {{path: {model}}}\nreplicas: {{restart: {{failures: 1}}}}\n")
    return "--config", str(file)


def rest_of(chunks: Generator[str, None, None]) -> tuple[str, bool]:
    """What still comes of a stream, and whether it comes to its proper end."""
    text = ""
    try:
        for chunk in chunks:
            text += chunk
    except IncompleteRead:
        return text, False
    return text, True


def running(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rsplit(")", 1)[1].split()[0] not in "ZX"


def wait_until_gone(pids: list[int], seconds: float = 60) -> list[int]:
    """The processes that still run after `seconds`."""
    end = time.monotonic() + seconds
    while (left := [pid for pid in pids if running(pid)]) and time.monotonic() < end:
        time.sleep(0.05)
    return left
