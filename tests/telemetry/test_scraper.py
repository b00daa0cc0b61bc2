"""Other programs' metrics: asked at once, within limits, and of nobody else."""

import contextlib
import gzip
import http.client
import socket
import socketserver
import threading
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.telemetry.fake_pages import FakePages, fake_pages
from tunan.telemetry.exporter import exporting
from tunan.telemetry.fronting import Fronting
from tunan.telemetry.page import OPENMETRICS
from tunan.telemetry.scraper import MOST_BYTES, Page, Scraper
from tunan.telemetry.targets import Asking, Target


@pytest.fixture
def there() -> Iterator[FakePages]:
    with fake_pages() as pages:
        yield pages


def asked(*urls: str, timeout_s: float = 60, key: str = "") -> list[Page]:
    targets = tuple(Target(url) for url in urls)
    with Scraper(Asking(targets, timeout_s, key)) as scraper:
        return scraper.pages()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_a_page_is_read_in_the_format_that_it_is_in(there: FakePages) -> None:
    plain = there.show("m 1\n")
    other = there.show(
        "# TYPE n counter\nn_total 2\n# EOF\n", "/other", f"{OPENMETRICS}; version=1"
    )
    pages = asked(plain, other)
    assert [page.problem for page in pages] == ["", ""]
    samples = [sample for page in pages for family in page.families for sample in family.samples]
    assert [(sample.name, sample.value) for sample in samples] == [("m", 1), ("n_total", 2)]
    assert [page.target.instance for page in pages] == [there.instance, f"{there.instance}/other"]


@pytest.mark.parametrize("path", ["/hangs", "/trickles"])
def test_one_that_hangs_costs_the_time_and_not_the_others(there: FakePages, path: str) -> None:
    there.show("", "/trickles")
    pages = asked(there.url + path, there.show("m 1\n"), timeout_s=2)
    assert pages[0].problem == "no whole answer in 2 s"
    assert [family.name for family in pages[1].families] == ["m"]


def test_all_are_asked_at_once(there: FakePages) -> None:
    """Each answers only when the other has been asked too."""
    there.meeting = threading.Barrier(2, timeout=60)
    pages = asked(there.show("m 1\n", "/a"), there.show("m 2\n", "/b"))
    assert [page.problem for page in pages] == ["", ""]


def test_what_is_wrong_with_a_page_is_said(there: FakePages) -> None:
    there.show("secret 1\n", "/elsewhere")
    problems = {
        there.show("<html>", "/html"): "shows no metrics that can be read",
        there.show("x" * (MOST_BYTES + 1), "/large"): "shows more than 4 MiB",
        there.show("", "/moved", status=302, Location="/elsewhere"): "answers 302",
        there.show("", "/locked", status=401): "wants the API key of monitor.scrape_key_file",
        there.show(gzip.compress(b"m 1\n"), "/packed", Content_Encoding="gzip"): "encoding",
        f"{there.url}/nowhere": "answers 404",
        f"http://127.0.0.1:{free_port()}/metrics": "cannot be reached",
    }
    pages = asked(*problems)
    for page, problem in zip(pages, problems.values(), strict=True):
        assert problem in page.problem
        assert page.families == ()
    assert "/elsewhere" not in [path for path, _ in there.asked]


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "what it sends is not HTTP"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "what it sends is not HTTP"),
        (b"", "closes the connection without an answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nm 1", "its answer breaks off"),
    ],
)
def test_what_is_no_page_of_http_is_said_in_words(sent: bytes, problem: str) -> None:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            self.request.sendall(sent)

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        (page,) = asked(f"http://127.0.0.1:{server.server_address[1]}/metrics")
        server.shutdown()
        thread.join()
    assert page.problem.startswith(problem)
    assert "Error" not in page.problem


@pytest.mark.parametrize(("path", "status"), [("/metrics", 200), ("/", 200), ("/nope", 404)])
def test_only_metrics_is_a_page_of_the_monitor(path: str, status: int) -> None:
    with exporting("127.0.0.1", 0, 3600) as (port, _):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == status
            assert (b"tunan_host_load1" in answer.read()) is (status == 200)


def test_only_with_a_key_is_one_shown_and_nothing_is_asked_to_be_packed(there: FakePages) -> None:
    url = there.show("m 1\n")
    asked(url)
    asked(url, key="a-key-of-enough-length")
    (_, without), (_, with_key) = there.asked
    assert "Authorization" not in without
    assert with_key["Authorization"] == "Bearer a-key-of-enough-length"
    assert with_key["Accept-Encoding"] == "identity"


def test_proxies_of_the_environment_are_not_asked(
    there: FakePages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    assert asked(there.show("m 1\n"))[0].problem == ""


def test_who_waits_at_the_end_is_let_go(there: FakePages) -> None:
    answers: list[list[Page]] = []
    with Scraper(Asking((Target(f"{there.url}/hangs"),), 600)) as scraper:
        thread = threading.Thread(target=lambda: answers.append(scraper.pages()))
        thread.start()
        while not there.asked:
            thread.join(0.01)
    thread.join(60)
    assert answers == [[]]


def test_a_target_that_is_down_is_a_figure_and_its_reason_is_said_once(there: FakePages) -> None:
    said: list[str] = []
    good, bad = there.show("m 1\n"), f"{there.url}/later"
    asking = Asking((Target(good), Target(bad)), 60)
    with Scraper(asking) as scraper:
        fronting = Fronting(CollectorRegistry(), scraper.pages, said.append)
        for _ in range(2):
            text = generate_latest(fronting).decode()
        assert f'tunan_monitor_target_up{{target="{there.instance}"}} 1.0' in text
        assert f'tunan_monitor_target_up{{target="{there.instance}/later"}} 0.0' in text
        assert f'm{{instance="{there.instance}"}} 1.0' in text
        there.show("n 2\n", "/later")
        assert f'n{{instance="{there.instance}/later"}} 2.0' in generate_latest(fronting).decode()
    assert said == [f"{bad}: answers 404: has no such page", f"{bad}: is back"]


def test_names_are_the_same_for_who_prefers_openmetrics(there: FakePages) -> None:
    asking = Asking((Target(there.show("# TYPE vllm:x gauge\nvllm:x 1\n")),), 60)
    with exporting("127.0.0.1", 0, 3600, asking) as (port, _):
        url = f"http://127.0.0.1:{port}/metrics"
        request = urllib.request.Request(url, headers={"Accept": f"{OPENMETRICS};version=1.0.0"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert f'vllm:x{{instance="{there.instance}"}} 1.0\n' in answer.read().decode()


def test_a_monitor_that_is_its_own_target_comes_to_an_end() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/metrics"
    said: list[str] = []
    asking = Asking((Target(url),), 1)
    with exporting("127.0.0.1", port, 3600, asking, said.append):
        (page,) = asked(url)
    assert page.problem == ""
    assert said == [f"{url}: no whole answer in 1 s"]
    ups = [family.samples for family in page.families if family.name == "tunan_monitor_target_up"]
    assert [sample.value for samples in ups for sample in samples] == [0.0]
