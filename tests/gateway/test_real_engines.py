"""Two real engines behind a real `tunan gateway`; one is killed while it answers."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.models import write_decided_llama
from tests.serving import Served, serving
from tunan.cli.main import main

pytestmark = pytest.mark.engine

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
USAGE = {"stream_options": {"include_usage": True}}
ANSWER = {"max_tokens": 400, "temperature": 0, "ignore_eos": True, "stream": True}
CASES: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": [{"role": "user", "content": "Question 111"}], **USAGE}),
    (COMPLETION, {"prompt": "Answer 42", "stop": ["no such text", "图"], **USAGE}),
    (COMPLETION, {"prompt": "Answer 26", "logprobs": 1, "return_token_ids": True}),
    (CHAT, {"messages": [{"role": "user", "content": "Question 68"}], "logprobs": True}),
]


class Stream(threading.Thread):
    """One streamed answer, read as it comes."""

    def __init__(self, url: str, path: str, body: dict[str, Any], model: str) -> None:
        super().__init__(daemon=True)
        self.url, self.path, self.body = url, path, {"model": model, **ANSWER, **body}
        self.events: list[dict[str, Any]] = []
        self.done = False
        self.begun = threading.Event()

    def run(self) -> None:
        host, port = self.url.removeprefix("http://").split(":")
        connection = HTTPConnection(host, int(port), timeout=60)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", self.path, json.dumps(self.body), headers)
        with contextlib.closing(connection), connection.getresponse() as response:
            while line := response.readline():
                if line.startswith(b"data: {"):
                    self.events.append(json.loads(line[6:]))
                self.done |= line == b"data: [DONE]\n"
                if len(self.events) == 30:
                    self.begun.set()

    @property
    def said(self) -> tuple[Any, ...]:
        """All that must be the same whether or not an engine died."""
        choices = [event["choices"][0] for event in self.events if event.get("choices")]
        text = "".join(
            (c.get("delta") or {}).get("content") or c.get("text") or "" for c in choices
        )
        ids = [i for choice in choices for i in choice.get("token_ids") or []]
        tokens = [token for choice in choices for token in _tokens(choice.get("logprobs"))]
        offsets = [o for c in choices for o in (c.get("logprobs") or {}).get("text_offset", [])]
        reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
        usage = [event["usage"] for event in self.events if event.get("usage")]
        return text, ids, tokens, offsets, reasons, usage, self.done

    @property
    def heads(self) -> set[tuple[Any, ...]]:
        return {(e["id"], e["object"], e["created"], e["model"]) for e in self.events}


def _tokens(logprobs: dict[str, Any] | None) -> list[str]:
    if logprobs is None:
        return []
    if "content" in logprobs:
        return [entry["token"] for entry in logprobs["content"]]
    return list(logprobs["tokens"])


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Served]]:
    folder = tmp_path_factory.mktemp("models")
    assert (
        main(["convert", str(write_decided_llama(folder / "source")), str(folder / "small")]) == 0
    )
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(
                serving(folder / "small", tmp_path_factory.mktemp(name), "--warmup-requests", "2")
            )
            for name in ("first", "second")
        ]
        for server in servers:
            server.wait_until_ready()
        yield servers


@pytest.fixture(scope="module")
def gateway(engines: list[Served], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    replicas = [word for engine in engines for word in ("--replica", engine.url)]
    command = [sys.executable, "-m", "tunan", "gateway", "--port", "0", *replicas]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        yield line.split("gateway at ")[1].split(";")[0]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def kill(served: Served) -> None:
    """As a machine that loses its power: nothing of it ends by itself."""
    pids = [served.process.pid, *served.engine_processes()]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def get(address: str, path: str) -> str:
    host, port = address.removeprefix("http://").split(":")
    with contextlib.closing(HTTPConnection(host, int(port), timeout=60)) as connection:
        connection.request("GET", path)
        return connection.getresponse().read().decode()


def metric(address: str, name: str) -> float:
    lines = get(address, "/metrics").splitlines()
    return float(next(line for line in lines if line.startswith(name)).split()[1])


def busiest(address: str) -> int:
    """The number of the replica with the most requests."""
    replicas = json.loads(get(address, "/ready"))["replicas"]
    return max(range(len(replicas)), key=lambda number: replicas[number]["in_flight"])


def test_an_engine_killed_in_mid_stream_changes_no_token(
    engines: list[Served], gateway: str, tmp_path: Path
) -> None:
    model = engines[1].model
    undisturbed = [Stream(engines[1].url, path, body, model) for path, body in CASES]
    for stream in undisturbed:
        stream.start()
        stream.join()
    streams = [Stream(gateway, path, body, model) for path, body in CASES]
    for stream in streams:
        stream.start()
    for stream in streams:
        assert stream.begun.wait(60)
    kill(engines[busiest(gateway)])
    for stream in streams:
        stream.join(60)
    assert metric(gateway, "tunan_gateway_resumed_streams_total") >= 1
    for stream, alone in zip(streams, undisturbed, strict=True):
        assert stream.said == alone.said
        assert len(stream.heads) == 1
