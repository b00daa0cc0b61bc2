"""`tunan chat`, against the front door with a fake engine and against nothing."""

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tunan.cli.main import main

DONE = "data: [DONE]\n\n"


def event(text: str) -> str:
    return f"data: {json.dumps({'choices': [{'delta': {'content': text}}]})}\n\n"


class FakeServer(BaseHTTPRequestHandler):
    """Answers as an OpenAI server; what it got and what it says are on its `server`."""

    def do_GET(self) -> None:
        self._send(self.server.models_status, self.server.models)  # type: ignore[attr-defined]

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        body = json.loads(self.rfile.read(length))
        self.server.asked.append((body, self.headers["Authorization"]))  # type: ignore[attr-defined]
        self._send(200, self.server.answer)  # type: ignore[attr-defined]

    def _send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    fake = ThreadingHTTPServer(("127.0.0.1", 0), FakeServer)
    fake.asked = []  # type: ignore[attr-defined]
    fake.models_status = 200  # type: ignore[attr-defined]
    fake.models = json.dumps({"data": [{"id": "m"}]})  # type: ignore[attr-defined]
    fake.answer = event("图") + event("南") + DONE  # type: ignore[attr-defined]
    thread = threading.Thread(target=fake.serve_forever)
    thread.start()
    yield fake
    fake.shutdown()
    fake.server_close()
    thread.join()


def chat(server: ThreadingHTTPServer, *arguments: str) -> int:
    return main(["chat", "--url", f"http://127.0.0.1:{server.server_port}", *arguments])


def test_the_answer_is_printed(
    server: ThreadingHTTPServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat(server, "what", "is", "it?") == 0
    assert capsys.readouterr().out == "图南\n"
    ((body, key),) = server.asked  # type: ignore[attr-defined]
    assert body["messages"] == [{"role": "user", "content": "what is it?"}]
    assert body["model"] == "m"
    assert key is None


def test_key_and_options_are_sent(server: ThreadingHTTPServer) -> None:
    options = ["--api-key", "k", "--max-tokens", "3", "--temperature", "0", "--system", "s"]
    assert chat(server, *options, "hi") == 0
    ((body, key),) = server.asked  # type: ignore[attr-defined]
    assert key == "Bearer k"
    assert (body["max_tokens"], body["temperature"]) == (3, 0)
    assert body["messages"][0] == {"role": "system", "content": "s"}


def test_a_pipe_is_the_prompt(server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("图\n南\n".encode())))
    assert chat(server) == 0
    assert server.asked[0][0]["messages"][0]["content"] == "图\n南"  # type: ignore[attr-defined]


def test_an_empty_pipe_is_wrong_use(
    server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert chat(server) == 2


def test_a_server_that_is_not_ready_tells_its_stage(
    server: ThreadingHTTPServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.models_status = 503  # type: ignore[attr-defined]
    server.models = json.dumps({"error": {"message": "the model is not ready: warming 3/100"}})  # type: ignore[attr-defined]
    assert chat(server, "hi") == 3
    assert "warming 3/100" in capsys.readouterr().err


@pytest.mark.parametrize(
    "answer", [event("a"), event("a") + 'data: {"error": {"message": "it died"}}\n\n']
)
def test_an_answer_that_breaks_off_is_an_error(
    server: ThreadingHTTPServer, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answer = answer  # type: ignore[attr-defined]
    assert chat(server, "hi") == 3
    assert "broke off" in capsys.readouterr().err


def test_no_server_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--url", "http://127.0.0.1:9", "hi"]) == 3
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "is `tunan serve` running there?" in lines[0]


def test_something_else_on_the_port_is_one_line(
    server: ThreadingHTTPServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.models = "<html>"  # type: ignore[attr-defined]
    assert chat(server, "hi") == 3
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_address_may_end_in_a_slash(
    server: ThreadingHTTPServer, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://127.0.0.1:{server.server_port}/"
    assert main(["chat", "--url", url, "Hello"]) == 0


@pytest.mark.parametrize("words", [("--api-key", "a\nb"), ("--url", "ftp://127.0.0.1")])
def test_a_key_or_an_address_of_the_wrong_form_is_wrong_use(words: tuple[str, str]) -> None:
    assert main(["chat", *words, "Hello"]) == 2


def test_a_server_that_is_not_there_is_said_in_one_clear_line(
    capsys: pytest.CaptureFixture[str], unused_tcp_port: int
) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    assert main(["chat", "--url", url, "hello"]) == 3
    assert capsys.readouterr().err == (
        f"tunan: no answer from {url}: nothing listens there; is `tunan serve` running there?\n"
    )
