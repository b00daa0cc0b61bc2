"""A front door before several fake engines, and what a client reads through it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import ClientPayloadError, ClientResponse, ClientSession

from tests.gateway.fake_engine import FakeEngine, fake_engine
from tunan.config.deployment import Gateway
from tunan.gateway.app import FrontDoor, front_door
from tunan.gateway.pool import Pool
from tunan.gateway.replica import HttpAddress, Replica, Stage
from tunan.gateway.server import address_of, bind, serving

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"


@dataclass
class Fleet:
    """The engines, the replicas that stand for them, the front door's address, a client."""

    engines: list[FakeEngine]
    pool: Pool
    url: str
    client: ClientSession
    app: FrontDoor

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """The replicas, as the engines are numbered."""
        return self.pool.replicas

    async def ask(self, path: str, body: dict[str, Any], url: str | None = None) -> "Told":
        """A streamed request through the front door, read to its end."""
        async with self.client.post((url or self.url) + path, json=body) as answer:
            return await read(answer)

    async def until_shown(self, line: str) -> None:
        """Returns when `line` stands in the gateway's metrics."""
        async with asyncio.timeout(60):
            while True:
                async with self.client.get(f"{self.url}/metrics") as answer:
                    if line in (await answer.text()).splitlines():
                        return
                await asyncio.sleep(0.01)


@dataclass
class Told:
    """What a client was told."""

    status: int
    events: list[Any] = field(default_factory=list)
    done: bool = False
    complete: bool = True
    raw: bytes = b""

    @property
    def text(self) -> str:
        """All text."""
        return "".join(
            (choice.get("delta") or {}).get("content") or choice.get("text") or ""
            for choice in self.choices
        )

    @property
    def reasoning(self) -> str:
        """All of it."""
        return "".join((c.get("delta") or {}).get("reasoning") or "" for c in self.choices)

    @property
    def tool_calls(self) -> dict[int, dict[str, list[str]]]:
        """Of each call what was told of it: every id, type and name, and its arguments in one."""
        found: dict[int, dict[str, list[str]]] = {}
        for choice in self.choices:
            for part in (choice.get("delta") or {}).get("tool_calls") or []:
                call = found.setdefault(part["index"], {})
                for key, value in {**part, **part.get("function", {})}.items():
                    if key == "arguments":
                        call[key] = ["".join([*call.get(key, []), value])]
                    elif key not in ("index", "function"):
                        call.setdefault(key, []).append(value)
        return found

    @property
    def choices(self) -> list[Any]:
        """Choice 0 of each event."""
        return [event["choices"][0] for event in self.events if event.get("choices")]

    @property
    def ids(self) -> list[int]:
        """All token ids, if asked for."""
        return [i for choice in self.choices for i in choice.get("token_ids") or []]

    @property
    def logprobs(self) -> list[Any]:
        """What logprobs say of each token."""
        found = [choice["logprobs"] for choice in self.choices if choice.get("logprobs")]
        if found and "content" in found[0]:
            return [entry for one in found for entry in one["content"]]
        return [entry for one in found for entry in zip(*one.values(), strict=True)]

    @property
    def finish_reasons(self) -> list[str]:
        """Those that are set."""
        return [c["finish_reason"] for c in self.choices if c.get("finish_reason")]

    @property
    def usage(self) -> Any:
        """The last event's."""
        return self.events[-1].get("usage") if self.events else None

    @property
    def heads(self) -> set[tuple[Any, ...]]:
        """What must not change within an answer."""
        return {(e["id"], e["object"], e["created"], e["model"]) for e in self.events if "id" in e}

    @property
    def error(self) -> Any:
        """The error event's."""
        return next((event["error"] for event in self.events if "error" in event), None)


async def read(answer: ClientResponse) -> Told:
    """Reads a stream to its end or to where it breaks."""
    told = Told(answer.status)
    try:
        async for chunk in answer.content.iter_any():
            told.raw += chunk
    except ClientPayloadError:
        told.complete = False
    if answer.content_type != "text/event-stream":
        told.events = [json.loads(told.raw)] if told.raw else []
        return told
    for event in told.raw.split(b"\n\n")[:-1]:
        if event == b"data: [DONE]":
            told.done = True
        else:
            told.events.append(json.loads(event.removeprefix(b"data: ")))
    return told


@contextlib.asynccontextmanager
async def fleet(count: int = 2, **settings: Any) -> AsyncIterator[Fleet]:
    """`count` ready replicas behind a front door; `settings` are those of `gateway`."""
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(fake_engine()) for _ in range(count)]
        replicas = [
            Replica(HttpAddress(engine.url), f"replica-{number}", stage=Stage.READY)
            for number, engine in enumerate(engines)
        ]
        pool = Pool(replicas)
        listener = stack.enter_context(bind("127.0.0.1", 0))
        gateway = Gateway(**{"resume_wait_s": 0.3, "prefix_kib": 0, **settings})
        app = await stack.enter_async_context(front_door(pool, gateway))
        await stack.enter_async_context(serving(app, listener))
        client = await stack.enter_async_context(ClientSession())
        yield Fleet(engines, pool, address_of(listener), client, app)
