"""The smallest number of tokens that a prompt can have, and the limit on it."""

import json
from typing import Any

import pytest

from tests.gateway.fake_engine import Trouble
from tests.gateway.fleet import CHAT, COMPLETION, fleet
from tests.gateway.test_resume import body_for
from tunan.gateway.call import with_additions
from tunan.gateway.prompt_size import least_prompt_tokens

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 8000}}
PARTS = [{"type": "text", "text": "1" * 80}, IMAGE]


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        ({"prompt": [1, 2, 3]}, 3),
        ({"prompt": [[1, 2, 3], [1, 2, 3, 4, 5]]}, 5),
        ({"prompt": "12345678"}, 1),
        ({"prompt": "123456789"}, 2),
        ({"prompt": "图南图南"}, 2),
        ({"prompt": ["12345678" * 3, "1"]}, 3),
        ({"prompt": ""}, 0),
        ({"prompt": None}, 0),
        ({"prompt": []}, 0),
        ({}, 0),
        ({"messages": [{"role": "user", "content": "12345678"}] * 4}, 4),
        ({"messages": [{"role": "user", "content": PARTS}]}, 10),
        ({"messages": [{"role": "user", "content": "1", "reasoning_content": "1" * 800}]}, 1),
        ({"messages": "no list", "input": 7}, 1),
        ({"input": ["1" * 80, "1"]}, 10),
        ({"input": [{"role": "user", "content": "1" * 80}] * 2}, 20),
        ({"query": "1", "documents": ["1" * 80, "1" * 16]}, 10),
    ],
)  # fmt: skip
def test_ids_are_counted_and_text_has_a_token_every_eight_bytes(
    content: dict[str, Any], tokens: int
) -> None:
    assert least_prompt_tokens(content) == tokens


@pytest.mark.parametrize(
    ("path", "content", "status"),
    [
        (COMPLETION, {"prompt": [5] * 20}, 200),
        (COMPLETION, {"prompt": [5] * 21}, 400),
        (COMPLETION, {"prompt": "1" * 160}, 200),
        (COMPLETION, {"prompt": "1" * 161}, 400),
        (CHAT, {"messages": [{"role": "user", "content": "1" * 100}] * 2}, 400),
        ("/v1/embeddings", {"input": "1" * 200}, 400),
        ("/v1/embeddings", {"input": "1" * 100}, 200),
    ],
)
async def test_a_prompt_above_the_limit_is_400_and_reaches_no_replica(
    path: str, content: dict[str, Any], status: int
) -> None:
    async with fleet(1, max_prompt_tokens=20) as door:
        async with door.client.post(door.url + path, json={"model": "fake", **content}) as answer:
            assert answer.status == status
            told = await answer.json()
        if status == 200:
            assert len(door.engines[0].requests) == 1
            return
        assert door.engines[0].requests == []
        assert told["error"]["type"] == "invalid_request_error"
        assert told["error"]["code"] == 400
        assert "this server takes 20 at most" in told["error"]["message"]


async def test_what_the_engine_itself_refuses_as_too_long_passes_and_loses_no_replica() -> None:
    async with fleet(max_prompt_tokens=100) as door:
        for _ in range(8):
            door.engines[0].troubles = [Trouble("refuse")]
            told = await door.ask(CHAT, body_for(CHAT))
            assert told.status == 400
        assert door.replicas[0].ready
        assert door.engines[1].requests == []


@pytest.mark.parametrize("body", [b"{}", b' {"a": 1} \n', b'{"a": {"b": []}, "c": 2 }', b"{ \n}"])
def test_additions_come_on_top_of_the_bytes_as_they_are(body: bytes) -> None:
    added = {"return_token_ids": True, "a": {"x": 1}}
    assert json.loads(with_additions(body, added)) == json.loads(body) | added
    assert with_additions(body, added).startswith(body.rstrip()[:-1].rstrip())
