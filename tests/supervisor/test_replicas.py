"""Two real engines behind one door: each is killed in its own way, and both are rolled."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.models import write_decided_llama
from tests.serving import Served, rest_of, serving, wait_until_gone
from tunan.cli.main import main
from tunan.supervisor.process import descendants

pytestmark = pytest.mark.engine
TOKENS = 32


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Both replicas are ready."""
    folder = tmp_path_factory.mktemp("replicas")
    source = write_decided_llama(folder / "source")
    assert main(["convert", str(source), str(folder / "small-llama")]) == 0
    options = ("--replicas", "2", "--warmup-requests", "2")
    with serving(folder / "small-llama", folder, *options) as server:
        while server.wait_until_ready()["replica"] != "replica-1":
            pass
        yield server


@pytest.fixture(scope="module")
def tokens(served: Served) -> list[int]:
    """What either replica answers to the same greedy question."""
    return answer_of(served)


def answer_of(served: Served) -> list[int]:
    answer = served.complete(max_tokens=TOKENS, ignore_eos=True, return_token_ids=True)
    assert answer.status == 200, answer.body
    ids: list[int] = answer.json()["choices"][0]["token_ids"]
    assert len(ids) == TOKENS
    return ids


def port_of(served: Served) -> str:
    return served.url.rsplit(":", 1)[1]


def replicas(served: Served, capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """As `tunan status` shows them."""
    capfd.readouterr()
    assert main(["status", port_of(served), "--json"]) == 0
    (state,) = json.loads(capfd.readouterr().out)
    found: list[dict[str, Any]] = state["replicas"]
    return found


def test_the_second_replica_shares_pages_with_the_first(
    served: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    memory = served.wait_for("memory")
    assert memory["replica"] == "replica-1"
    first, second = replicas(served, capfd)
    assert 0 < memory["added"] < first["memory"] + second["memory"]
    assert (first["stage"], second["stage"]) == ("ready", "ready")


def test_both_answer_the_same(served: Served, tokens: list[int]) -> None:
    assert [answer_of(served) for _ in range(4)] == [tokens] * 4


@pytest.mark.parametrize(("number", "below"), [(0, False), (1, True)], ids=["API", "EngineCore"])
def test_a_killed_process_takes_its_replica_and_not_the_service(
    served: Served,
    tokens: list[int],
    capfd: pytest.CaptureFixture[str],
    number: int,
    below: bool,
) -> None:
    pid = replicas(served, capfd)[number]["pid"]
    (core,) = descendants(pid)
    os.kill(core if below else pid, signal.SIGKILL)
    assert served.ask("/ready").status == 200
    assert answer_of(served) == tokens
    restarting = served.wait_for("restarting")
    assert restarting["replica"] == f"replica-{number}"
    assert f"(pid {core if below else pid})" in restarting["cause"]
    assert wait_until_gone([pid, core]) == []
    assert served.wait_until_ready()["replica"] == f"replica-{number}"
    assert [replica["starts"] for replica in replicas(served, capfd)] == [2, 2 if below else 1]


@pytest.mark.long
def test_a_rollout_under_load_loses_nothing(
    served: Served, tokens: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    starts = [replica["starts"] for replica in replicas(served, capfd)]
    over = threading.Event()
    answers: list[list[int]] = []
    streams: list[bool] = []

    def whole() -> None:
        while not over.is_set():
            answers.append(answer_of(served))

    def streamed() -> None:
        while not over.is_set():
            text, complete = rest_of(served.stream(TOKENS))
            streams.append(complete and text.endswith("data: [DONE]\n\n") and "error" not in text)

    clients = [threading.Thread(target=ask) for ask in (whole, streamed, streamed)]
    for client in clients:
        client.start()
    try:
        assert main(["rollout", port_of(served)]) == 0
    finally:
        over.set()
        for client in clients:
            client.join()
    assert len(answers) > 2
    assert all(answer == tokens for answer in answers)
    assert streams
    assert all(streams)
    assert [replica["starts"] for replica in replicas(served, capfd)] == [n + 1 for n in starts]


def test_sigterm_ends_both(served: Served) -> None:
    """The last test of this server: it is stopped here."""
    below = served.engine_processes()
    assert len(below) == 4
    assert served.stop() == 0
    assert wait_until_gone(below) == []
