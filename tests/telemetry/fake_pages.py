"""A server with a page of metrics, and with every way of not having one."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TEXT = "text/plain; version=0.0.4; charset=utf-8"


@dataclass
class FakePages:
    """Content, type, status and further headers by path. `/hangs` never answers and `/trickles`
    sends a byte now and then, until `over`. `asked`: path and headers of each request."""

    pages: dict[str, tuple[bytes, str, int, dict[str, str]]] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    meeting: threading.Barrier | None = None  # that all who ask wait at, before they are answered
    url: str = ""

    @property
    def instance(self) -> str:
        """Host and port."""
        return self.url.removeprefix("http://")

    def show(
        self, content: str | bytes, path: str = "/metrics", kind: str = TEXT, status: int = 200,
        **headers: str,
    ) -> str:  # fmt: skip
        """Puts a page there; its address."""
        data = content.encode() if isinstance(content, str) else content
        self.pages[path] = (data, kind, status, headers)
        return self.url + path


@contextlib.contextmanager
def fake_pages() -> Iterator[FakePages]:
    """A running server on a free port."""
    fake = FakePages()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fake.asked.append((self.path, dict(self.headers)))
            if fake.meeting:
                fake.meeting.wait()
            if self.path == "/hangs":
                fake.over.wait()
                return
            content, kind, status, headers = fake.pages.get(self.path, (b"", TEXT, 404, {}))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.path == "/trickles":
                while not fake.over.wait(0.01):
                    self.wfile.write(b"#")
                    self.wfile.flush()
            with contextlib.suppress(OSError):  # whoever asked has seen enough
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield fake
    finally:
        fake.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
