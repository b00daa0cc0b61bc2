"""A script that stands in for an engine: an OpenAI server on a Unix socket with a child process.

`--uds=SOCKET`, as vLLM. `--behaviour=FILE` is read at each start: `serve` (also without the file),
`fail TEXT` (prints TEXT and ends with status 1), `refuse TEXT` (as vLLM's command line: status 2),
`hang` (never listens), `die` (serves one warm-up, then ends by itself), `doom TEXT` (prints TEXT
when it is asked first, and answers half a second later), `crowd TEXT` (as `fail` where it may use
90 % of the memory, else as `serve`). A streamed completion sends one event each 20 ms and a number
in it.
"""

import json
import os
import signal
import socketserver
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    dies = False
    doom = ""

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._send({"data": [{"id": "fake", "max_model_len": 64}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.doom:
            sys.stderr.write(f"{self.doom}\n")
            sys.stderr.flush()
            time.sleep(0.5)
        if body.get("stream"):
            self._stream(int(body["max_tokens"]))
        else:
            self._send({"choices": [{"text": "x"}], "usage": {"completion_tokens": 1}})
        if self.dies:
            sys.stderr.write("RuntimeError: died as it was told to\n")
            sys.stderr.flush()
            os._exit(1)

    def _send(self, content: object) -> None:
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, tokens: int) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        events = [json.dumps({"choices": [{"text": f" {n}"}]}) for n in range(tokens)]
        for event in (*events, "[DONE]"):
            data = f"data: {event}\n\n".encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            time.sleep(0.02)
        self.wfile.write(b"0\r\n\r\n")


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_: object) -> None:
        pass  # whoever asked is gone


def main() -> None:
    options = {name: value for name, _, value in (word.partition("=") for word in sys.argv[1:])}
    behaviour = Path(options.get("--behaviour", "/nowhere"))
    word, _, text = (behaviour.read_text() if behaviour.exists() else "serve").partition(" ")
    crowded = word == "crowd" and options["--gpu-memory-utilization"] == "0.9"
    if word == "fail" or crowded:
        sys.exit(text)
    if word == "refuse":
        sys.stderr.write(f"launcher: error: {text}\n")
        sys.exit(2)
    if word == "hang":
        time.sleep(600)
    Handler.dies = word == "die"
    Handler.doom = text if word == "doom" else ""
    core = os.fork()
    if core == 0:
        time.sleep(600)

    def end(*_: object) -> None:
        os.kill(core, signal.SIGKILL)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    with Server(options["--uds"], Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        while True:
            signal.pause()


if __name__ == "__main__":
    main()
