"""One real server for many checks, and a few that end theirs."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.models import write_llama
from tests.serving import Served, only_one_start, rest_of, serving, wait_until_gone
from tunan.cli.main import main

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint as `tunan convert` writes it."""
    folder = tmp_path_factory.mktemp("models")
    source = write_llama(folder / "source")
    assert main(["convert", str(source), str(folder / "small-llama")]) == 0
    return folder / "small-llama"


@pytest.fixture(scope="module")
def served(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(model, tmp_path_factory.mktemp("served"), "--warmup-requests", "20") as server:
        yield server


@pytest.fixture(scope="module")
def stages(served: Served) -> list[tuple[int, str]]:
    """Every (status of /ready, stage) seen from the start until it is ready."""
    seen: list[tuple[int, str]] = []
    while not seen or seen[-1][0] != 200:
        answer = served.ask("/ready")
        here = (answer.status, answer.json()["stage"])
        if here not in seen:
            seen.append(here)
        assert served.process.poll() is None, served.stderr.read_text()
        time.sleep(0.01)
    served.wait_until_ready()
    return seen


@pytest.fixture
def ready(served: Served, stages: list[tuple[int, str]]) -> Served:
    assert stages[-1] == (200, "ready")
    return served


def test_requests_before_ready_get_503_with_retry_after(served: Served) -> None:
    answer = served.complete()
    assert answer.status == 503
    assert int(answer.headers["retry-after"]) > 0
    assert "not ready" in answer.json()["error"]["message"]


def test_ready_goes_through_the_stages_in_order(
    served: Served, stages: list[tuple[int, str]]
) -> None:
    assert stages[0] == (503, "starting")
    assert (503, "warming") in stages
    # Loading so small a model is over before one can ask, but it is reported.
    loading = [event for event in served.events if event.get("stage") == "loading"]
    assert loading[-1]["done"] == loading[-1]["total"] >= 1
    assert stages[-1] == (200, "ready")


def test_health_is_alive_and_models_come_from_the_engine(ready: Served) -> None:
    assert ready.ask("/health").json() == {"status": "alive"}
    assert ready.ask("/v1/models").json()["data"][0]["id"] == "small-llama"


def test_a_completion_and_its_stream_give_the_same_tokens(ready: Served) -> None:
    whole = ready.complete(max_tokens=16, return_token_ids=True).json()["choices"][0]["token_ids"]
    stream = ready.complete(max_tokens=16, return_token_ids=True, stream=True)
    assert stream.headers["content-type"].startswith("text/event-stream")
    events = stream.body.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert [t for chunk in chunks for t in chunk["choices"][0]["token_ids"]] == whole


def test_the_stream_is_not_held_back(ready: Served) -> None:
    chunks = ready.stream(64)
    next(chunks)
    # The engine is still answering when the first event is already here.
    assert _running_requests(ready) == 1
    chunks.close()


def test_a_client_that_goes_away_frees_the_engine(ready: Served) -> None:
    chunks = ready.stream(400)
    next(chunks)
    chunks.close()
    deadline = time.monotonic() + 120
    while _running_requests(ready) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _running_requests(ready) == 0


def test_the_engines_errors_pass_through(ready: Served) -> None:
    answer = ready.ask("/v1/completions", {"model": "another", "prompt": "x"})
    assert answer.status == 404
    assert answer.json()["error"]["type"] == "NotFoundError"
    answer = ready.complete(max_tokens=-1)
    assert answer.status == 400


def test_chat_prints_the_answer(ready: Served, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--url", ready.url, "--max-tokens", "8", "--json", "你好"]) == 0
    assert json.loads(capfd.readouterr().out)["model"] == "small-llama"


def test_the_engine_uses_one_process_beside_the_api_server(ready: Served) -> None:
    assert len(ready.engine_processes()) == 2


def test_no_prompt_and_no_key_is_in_the_log(ready: Served) -> None:
    secret = "a very secret prompt"
    ready.ask(
        "/v1/completions",
        {"model": ready.model, "prompt": secret, "max_tokens": 1},
        Authorization="Bearer a-very-secret-key",
    )
    text = Path(ready.log).read_text()
    assert secret not in text
    assert "a-very-secret-key" not in text


def test_sigterm_lets_the_running_stream_finish_and_exits_0(ready: Served) -> None:
    """The last test of this server: it is stopped here."""
    below = ready.engine_processes()
    chunks = ready.stream(300)
    events = [next(chunks)]
    ready.process.send_signal(signal.SIGTERM)
    ready.wait_for("draining")
    assert ready.complete().status == 503
    assert ready.ask("/ready").json()["stage"] == "draining"
    events += list(chunks)
    assert "".join(events).endswith("data: [DONE]\n\n")
    assert ready.process.wait(60) == 0
    assert wait_until_gone(below) == []


def test_a_killed_engine_core_that_may_not_start_again_ends_the_service_with_one_line(
    model: Path, tmp_path: Path
) -> None:
    once = only_one_start(model, tmp_path)
    with serving(model, tmp_path, "--warmup-requests", "0", *once) as server:
        server.wait_until_ready()
        below = server.engine_processes()
        chunks = server.stream(400)
        next(chunks)
        (core,) = [pid for pid in below if "EngineCore" in Path(f"/proc/{pid}/cmdline").read_text()]
        os.kill(core, signal.SIGKILL)
        text, complete = rest_of(chunks)
        # vLLM says it in an error event if it still can; otherwise the stream is cut.
        assert '"error"' in text or not complete
        assert server.process.wait(20) == 3
        lines = server.stderr.read_text().splitlines()
        assert len(lines) == 1
        assert lines[0].startswith(f"tunan: the engine died: VLLM::EngineCore (pid {core}) ")
        assert wait_until_gone(below) == []


def test_a_flag_that_vllm_refuses_is_wrong_use(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path, "--", "--no-such-flag") as server:
        assert server.process.wait(120) == 2
        lines = server.stderr.read_text().splitlines()
        assert len(lines) == 1
        assert "given after `--`: unrecognized arguments: --no-such-flag" in lines[0]


def test_a_start_that_stands_still_is_given_up(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path, "--startup-timeout", "0.5") as server:
        assert server.process.wait(60) == 3
        lines = server.stderr.read_text().splitlines()
        assert len(lines) == 1
        assert "the engine has stood at 'starting' for 0.5 s" in lines[0]
        assert server.engine_processes() == []


def test_killing_the_supervisor_leaves_no_engine(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path, "--warmup-requests", "0") as server:
        server.wait_until_ready()
        below = server.engine_processes()
        assert len(below) == 2
        server.process.kill()
        server.process.wait()
        assert wait_until_gone(below) == []


def test_a_second_signal_ends_at_once_and_leaves_nothing(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path, "--warmup-requests", "0") as server:
        server.wait_until_ready()
        below = server.engine_processes()
        chunks = server.stream(500)
        next(chunks)
        server.process.send_signal(signal.SIGINT)
        server.wait_for("draining")
        assert server.stop(signal.SIGINT) == 128 + signal.SIGINT
        assert wait_until_gone(below) == []
        rest_of(chunks)


def test_a_model_the_engine_refuses_ends_with_its_reason(model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in model.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    config = json.loads((broken / "config.json").read_text())
    config["architectures"] = ["NoSuchForCausalLM"]
    (broken / "config.json").write_text(json.dumps(config))
    with serving(broken, tmp_path) as server:
        assert server.process.wait(120) == 3
        lines = server.stderr.read_text().splitlines()
        assert len(lines) == 1
        assert "NoSuchForCausalLM" in lines[0]


def _running_requests(server: Served) -> int:
    text = server.ask("/metrics").body.decode()
    lines = [line for line in text.splitlines() if line.startswith("vllm:num_requests_running")]
    return int(float(lines[0].split()[-1]))
