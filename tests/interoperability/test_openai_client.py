"""The `openai` Python client and curl, unchanged, at a real `tunan serve`."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, OpenAI

from tests.models import write_llama
from tests.serving import Served, serving

pytestmark = pytest.mark.engine

QUESTION = [{"role": "user", "content": "What is the Peng?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Beiming", "Nanming"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CHOICE = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("openai")
    options = ["--warmup-requests", "1", "--", "--enable-auto-tool-choice"]
    options += ["--tool-call-parser", "hermes"]
    with serving(write_llama(folder / "model"), folder, *options) as server:
        server.wait_until_ready()
        yield server


@pytest.fixture
def client(served: Served) -> Iterator[Any]:
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_models_are_listed(client: Any, served: Served) -> None:
    assert [model.id for model in client.models.list()] == [served.model]


def test_a_chat_whole_and_streamed_gives_the_same_text(client: Any, served: Served) -> None:
    options = {"model": served.model, "messages": QUESTION, "max_tokens": 20, "temperature": 0}
    whole = client.chat.completions.create(**options)
    with client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].usage == whole.usage
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert reasons[-1] == whole.choices[0].finish_reason


def test_a_sampled_chat_with_a_seed_gives_the_same_text_again(client: Any, served: Served) -> None:
    def ask(seed: int) -> Any:
        answer = client.chat.completions.create(
            model=served.model, messages=QUESTION, max_tokens=20, temperature=1, seed=seed
        )
        return answer.choices[0].message.content

    assert ask(7) == ask(7) != ask(8)


def test_a_completion_with_logprobs(client: Any, served: Served) -> None:
    answer = client.completions.create(
        model=served.model, prompt="the north sea", max_tokens=5, temperature=0, logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert len(logprobs.tokens or ()) == answer.usage.completion_tokens == 5


def test_a_tool_call_arrives_as_one_whole_and_streamed(client: Any, served: Served) -> None:
    """Its arguments are left alone: what this model writes is noise."""
    options = {"model": served.model, "messages": QUESTION, "max_tokens": 60, "temperature": 0}
    options |= {"tools": [TOOL], "tool_choice": CHOICE}
    (call,) = client.chat.completions.create(**options).choices[0].message.tool_calls
    assert (call.type, call.function.name) == ("function", "weather")
    chunks = client.chat.completions.create(**options, stream=True)
    deltas = [d for c in chunks if c.choices for d in c.choices[0].delta.tool_calls or ()]
    assert [d.function.name for d in deltas if d.function.name] == ["weather"]
    assert {d.index for d in deltas} == {0}


def test_a_bad_request_is_the_clients_own_error(client: Any, served: Served) -> None:
    with pytest.raises(BadRequestError):
        client.chat.completions.create(
            model=served.model, messages=QUESTION, max_tokens=5, temperature=-1
        )


async def test_the_async_client_streams(served: Served) -> None:
    made: Any = AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none")
    async with made as client:
        stream = await client.chat.completions.create(
            model=served.model, messages=QUESTION, max_tokens=8, temperature=0, stream=True
        )
        reasons = [c.choices[0].finish_reason async for c in stream if c.choices]
    assert reasons[-1] in ("length", "stop")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_streams_to_done(served: Served) -> None:
    body = {"model": served.model, "prompt": "the wind", "max_tokens": 5, "stream": True}
    command = ["curl", "-sS", "-N", "--fail", f"{served.url}/v1/completions"]
    command += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.rstrip().endswith("data: [DONE]")
