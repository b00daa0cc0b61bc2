"""`tunan convert`, then `tunan serve` on emulated devices: the tokens, by HTTP."""

import json
from pathlib import Path

import pytest

from tests.ascend.conftest import LENGTH, PROMPTS, Reference
from tests.ascend.served import cpu_python, greedy, serving_emulated, serving_on_cpu
from tests.serving import wait_until_gone
from tunan.cli.main import main

pytestmark = pytest.mark.ascend


def converted(source: Path, folder: Path, *options: str) -> Path:
    """What `tunan convert` makes of `source` for Ascend."""
    result = folder / "converted"
    assert main(["convert", str(source), str(result), "--target", "ascend910b", *options]) == 0
    return result


def test_a_converted_llama_is_served_with_the_tokens_of_transformers(
    llama: Path, reference: Reference, tmp_path: Path
) -> None:
    """Graphs, warm-up, a stream, and a drain that leaves nothing."""
    model = converted(llama, tmp_path)
    options = ("--warmup-requests", "3", "--no-enforce-eager")
    with serving_emulated(model, tmp_path, *options) as served:
        served.wait_until_ready()
        assert served.events[0]["device"] == "1 emulated Ascend910B3"
        stages = {event["stage"] for event in served.events if event["event"] == "progress"}
        assert stages == {"loading", "compiling", "warming"}
        expected = [reference(llama, prompt) for prompt in PROMPTS]
        assert [greedy(served, prompt, LENGTH) for prompt in PROMPTS] == expected
        chunks = "".join(served.stream(LENGTH, prompt=PROMPTS[0], return_token_ids=True))
        events = [event.removeprefix("data: ") for event in chunks.split("\n\n") if event]
        assert events[-1] == "[DONE]"
        streamed = [json.loads(event)["choices"][0]["token_ids"] for event in events[:-1]]
        assert [token for tokens in streamed for token in tokens] == expected[0]
        assert "load_format=tunan" in Path(served.log).read_text()
        below = served.engine_processes()
        assert served.stop() == 0
        assert wait_until_gone(below) == []
        assert served.stderr.read_text() == ""


@pytest.mark.long
@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3"])
def test_a_converted_deepseek_is_served_with_the_tokens_of_transformers(
    family: str, reference: Reference, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source: Path = request.getfixturevalue(family)
    model = converted(source, tmp_path)
    with serving_emulated(model, tmp_path, "--warmup-requests", "1") as served:
        served.wait_until_ready()
        expected = [reference(source, prompt) for prompt in PROMPTS]
        assert [greedy(served, prompt, LENGTH) for prompt in PROMPTS] == expected


@pytest.mark.long
@pytest.mark.parametrize("family", ["llama", "deepseek_v2", "deepseek_v3"])
def test_the_emulated_device_and_the_cpu_engine_give_the_same_tokens(
    family: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The CPU's engine is vLLM 0.32, the device's 0.23; one checkpoint for both."""
    python = cpu_python()
    if python is None:
        pytest.skip("no environment with the CPU engine here; `make setup` makes one")
    model = converted(request.getfixturevalue(family), tmp_path)
    tokens = []
    for place, start in {
        "device": serving_emulated(model, tmp_path, "--warmup-requests", "0"),
        "cpu": serving_on_cpu(python, model, tmp_path, "--warmup-requests", "0"),
    }.items():
        with start as served:
            served.wait_until_ready()
            tokens.append([greedy(served, prompt, LENGTH) for prompt in PROMPTS])
            assert served.stop() == 0, place
    assert tokens[0] == tokens[1]


@pytest.mark.long
@pytest.mark.parametrize(
    "parallel",
    [{"tensor": 2}, {"pipeline": 2}],
    ids=["tensor-parallel", "pipeline-parallel"],
)
def test_two_devices_give_the_tokens_of_transformers(
    parallel: dict[str, int], llama: Path, reference: Reference, tmp_path: Path
) -> None:
    model = converted(llama, tmp_path, "--tensor-parallel-size", str(parallel.get("tensor", 1)))
    config = tmp_path / "deploy.yaml"
    settings = {"model": {"path": str(model)}, "parallel": parallel, "warmup": {"requests": 1}}
    config.write_text(json.dumps(settings))
    with serving_emulated(model, tmp_path, "--config", str(config), devices=2) as served:
        served.wait_until_ready()
        expected = [reference(llama, prompt) for prompt in PROMPTS]
        assert [greedy(served, prompt, LENGTH) for prompt in PROMPTS] == expected
        below = served.engine_processes()
        assert served.stop() == 0
        assert wait_until_gone(below) == []
