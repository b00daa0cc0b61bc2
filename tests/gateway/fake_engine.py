"""A fake engine: a real HTTP server that speaks vLLM's streaming, with tokens made of arithmetic.

The next token is a function of all ids before it, as a greedy model's is, so whatever goes on
with the same ids gives the same tokens. Some tokens are parts of a character, some have no text.
It can be told to break its next answers in every way an engine does.
"""

import asyncio
import contextlib
import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

EOS = 0
SILENT = 1  # a special token, which has no text
PIECES: tuple[bytes, ...] = (
    b"",
    b"",
    *(" peng图南鲲鹏"[i : i + 1].encode() for i in range(9)),
    *("图南🐟🦅".encode()[i : i + 1] for i in range(14)),
    b" wing",
    b"END",
    b"EN",
    b"D",
    b'\\n"',
    b"\n",
)
MODEL = "fake"


@dataclass
class Trouble:
    """What happens to one answer after `after` events with tokens: see `FakeEngine.break_off`."""

    kind: str
    after: int = 0


@dataclass
class FakeEngine:
    """Its address, what it was asked, and what it will do wrong."""

    url: str = ""
    gap_s: float = 0.0
    tokens_an_event: int = 1
    eos: bool = True
    event_end: bytes = b"\n\n"
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    healthy: bool = True
    salt: str = ""  # another salt is another model
    longest: int = 1 << 20  # tokens of an answer
    extra_delta: dict[str, Any] = field(default_factory=dict)  # in every delta with text
    reasoning: int = 0  # tokens at the start of a chat that a parser makes reasoning
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    stalled: asyncio.Event = field(default_factory=asyncio.Event)
    metrics: Callable[[], str] = lambda: '# TYPE vllm:x gauge\nvllm:x{a="b"} 1.0\nvllm:y 2.0\n'

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request."""
        if request.method != "POST":
            return await self._got(request)
        content = await request.json()
        self.requests.append((request.path, content))
        self.headers.append({k.lower(): v for k, v in request.headers.items()})
        trouble = self.troubles.pop(0) if self.troubles else Trouble("none")
        if trouble.kind == "status":
            error = {"error": {"message": "broken " * 40_000, "code": 500}}
            return web.json_response(error, status=500)
        if trouble.kind in ("refuse", "busy"):
            status = 400 if trouble.kind == "refuse" else 429
            return web.json_response({"error": {"message": "no", "code": status}}, status=status)
        if trouble.kind == "hang up":
            _abort(request)
        if not content.get("stream"):
            return await self._whole(request, content, trouble)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            await self._stream(request, response, content, trouble)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return response

    async def _got(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/health":
            if not self.healthy:
                await asyncio.sleep(30)
            return web.Response()
        if request.path == "/metrics":
            return web.Response(text=self.metrics())
        if request.path == "/v1/models":
            return web.json_response({"data": []})
        return web.Response(status=404)

    async def _whole(
        self, request: web.BaseRequest, content: dict[str, Any], trouble: Trouble
    ) -> web.StreamResponse:
        if trouble.kind == "reset":
            response = web.StreamResponse(headers={"Content-Length": "1000"})
            await response.prepare(request)
            await response.write(b'{"half')
            _abort(request)
            return response
        if trouble.kind == "stall":
            await self.go_on.wait()
        told = list(self.answer(content))
        text = "".join(piece for _, piece, _ in told)
        usage = _usage(len(prompt_ids(content)), len(told))
        return web.json_response({"choices": [{"text": text}], "usage": usage})

    async def _stream(
        self,
        request: web.BaseRequest,
        response: web.StreamResponse,
        content: dict[str, Any],
        trouble: Trouble,
    ) -> None:
        for count, event in enumerate(self.events(request.path, content)):
            if trouble.kind != "none" and count == trouble.after:
                await self._break(request, response, event, trouble.kind)
                return
            await response.write(event.replace(b"\n\n", self.event_end))
            await asyncio.sleep(self.gap_s)
        if trouble.kind == "no done":
            _abort(request)
            return
        await response.write(b"data: [DONE]" + self.event_end)

    async def _break(
        self, request: web.BaseRequest, response: web.StreamResponse, event: bytes, kind: str
    ) -> None:
        if kind == "stall":
            self.stalled.set()
            await self.go_on.wait()
            return
        if kind == "broken framing":
            assert request.transport is not None
            request.transport.write(b"\x00<html>\r\n")
            await self.go_on.wait()
            return
        await response.write(_spoiled(event, kind))
        if kind == "error event":
            error = {"error": {"message": "EngineCore died", "type": "x", "code": 500}}
            await response.write(b"data: " + json.dumps(error).encode() + b"\n\ndata: [DONE]\n\n")
            return
        if kind == "end early":
            return
        if kind == "abort":
            broken = json.loads(event[6:])
            broken["choices"][0]["finish_reason"] = "abort"
            await response.write(_event(broken) + b"data: [DONE]\n\n")
            return
        await asyncio.sleep(0.03)  # for what was written to be read before the reset
        _abort(request)

    def events(self, path: str, content: dict[str, Any]) -> Iterator[bytes]:
        """The whole stream but `[DONE]`, as vLLM 0.32 writes it."""
        chat = path.endswith("/chat/completions")
        shows = bool(content.get("return_token_ids"))
        options = content.get("stream_options") or {}
        prompt = prompt_ids(content)
        head: dict[str, Any] = {
            "id": "chatcmpl-1" if chat else "cmpl-1",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": 1,
            "model": content.get("model", MODEL),
        }
        head["id"] += f"-{len(self.requests)}-{self.url[-4:]}"
        done = 0
        if chat:
            first: dict[str, Any] = {"index": 0, "delta": {"role": "assistant", "content": ""}}
            first |= {"logprobs": None, "finish_reason": None}
            yield _event(
                {**head, "choices": [first], "prompt_token_ids": prompt if shows else None}
            )
        offset = 0
        for ids, text, reason in self._bunched(content):
            done += len(ids)
            logprobs, offset = _logprobs(chat, content, ids, offset)
            stop_reason = {"stop_reason": None} if not chat or reason else {}
            choice: dict[str, Any] = {"index": 0} | (
                {"delta": self._parsed(content, done, text) | self.extra_delta}
                if chat
                else {"text": text}
            )
            choice |= {"logprobs": logprobs, "finish_reason": reason, **stop_reason}
            if not chat:
                first_event = shows and done == len(ids)
                choice["prompt_token_ids"] = prompt if first_event else None
            choice["token_ids"] = ids if shows else None
            event: dict[str, Any] = {**head, "choices": [choice]}
            if options.get("continuous_usage_stats"):
                event["usage"] = _usage(len(prompt), done)
            yield _event(event)
        if options.get("include_usage"):
            yield _event({**head, "choices": [], "usage": _usage(len(prompt), done)})

    def _parsed(self, content: dict[str, Any], done: int, text: str) -> dict[str, Any]:
        """What vLLM's parsers make of the text of the tokens up to number `done`."""
        if done <= self.reasoning:
            return {"reasoning": text}
        if not content.get("tools"):
            return {"content": text}
        number = 0 if done <= self.reasoning + 12 else 1
        first = done in (self.reasoning + 1, self.reasoning + 13)
        call: dict[str, Any] = {"index": number, "function": {"arguments": text}}
        if first:
            call |= {"id": f"call-{secrets.token_hex(4)}", "type": "function"}
            call["function"]["name"] = f"tool{number}"
        return {"tool_calls": [call]}

    def _bunched(self, content: dict[str, Any]) -> Iterator[tuple[list[int], str, str | None]]:
        bunch: list[int] = []
        text = ""
        for token, piece, reason in self.answer(content):
            bunch.append(token)
            text += piece
            if reason or len(bunch) == self.tokens_an_event:
                yield bunch, text, reason
                bunch, text = [], ""

    def answer(self, content: dict[str, Any]) -> Iterator[tuple[int, str, str | None]]:
        """Each token with the text that may be shown after it, and the finish reason at the end."""
        ids = list(prompt_ids(content))
        given = content.get("max_tokens")
        limit = min(self.longest, 40 if given is None else given)
        stops = content.get("stop") or []
        stops = [stops] if isinstance(stops, str) else stops
        inclusive = bool(content.get("include_stop_str_in_output"))
        lag = 0 if inclusive or not stops else max(len(stop) for stop in stops) - 1
        pending, text, shown = b"", "", 0
        for number in range(1, limit + 1):
            token = self._next(ids, number > content.get("min_tokens", 0))
            ids.append(token)
            pending += PIECES[token]
            whole = _complete(pending)
            text += whole
            pending = b"" if whole else pending
            reason = "stop" if token == EOS else "length" if number == limit else None
            found = [(text.index(stop), stop) for stop in stops if stop in text]
            if found:
                place, stop = min(found)
                text = text[: place + (len(stop) if inclusive else 0)]
                reason = "stop"
            end = len(text) if reason else max(shown, len(text) - lag)
            yield token, text[shown:end], reason
            shown = end
            if reason:
                return

    def _next(self, ids: list[int], may_end: bool) -> int:
        digest = hashlib.sha256((self.salt + str(ids)).encode()).digest()
        lowest = 0 if may_end and self.eos and digest[1] < 6 else 1
        if lowest == 0:
            return EOS
        # A character that has begun goes on, mostly: as a model's would.
        last = ids[-1] if ids else 0
        if 11 <= last < 24 and digest[2] < 250:
            return last + 1
        return lowest + digest[0] % (len(PIECES) - lowest)


def _complete(pending: bytes) -> str:
    try:
        return pending.decode()
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            return ""
        return pending.decode(errors="replace") if len(pending) > 3 else ""


def prompt_ids(content: dict[str, Any]) -> list[int]:
    """The ids of a request's prompt: given, or a letter each."""
    prompt = content.get("prompt")
    if isinstance(prompt, list) and isinstance(prompt[0], int):
        return list(prompt)
    if isinstance(prompt, list):
        prompt = "".join(prompt)
    text = prompt if isinstance(prompt, str) else json.dumps(content.get("messages"))
    return [2 + byte % 8 for byte in text.encode()]


def _logprobs(
    chat: bool, content: dict[str, Any], ids: list[int], offset: int
) -> tuple[dict[str, Any] | None, int]:
    wanted = content.get("logprobs")
    if wanted is None or wanted is False:
        return None, offset
    tokens = [f"t{i}" for i in ids]
    values = [-0.5 - i for i in ids]
    if chat:
        top = [{"token": "z", "logprob": -9.0, "bytes": [122]}][: content.get("top_logprobs") or 0]
        entries = [
            {"token": t, "logprob": v, "bytes": list(t.encode()), "top_logprobs": list(top)}
            for t, v in zip(tokens, values, strict=True)
        ]
        return {"content": entries}, offset
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    top_logprobs = [{"z": -9.0} for _ in ids]
    return {
        "text_offset": offsets,
        "token_logprobs": values,
        "tokens": tokens,
        "top_logprobs": top_logprobs,
    }, offset


def _usage(prompt: int, done: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "total_tokens": prompt + done, "completion_tokens": done}


def _spoiled(event: bytes, kind: str) -> bytes:
    if kind == "half an event":
        return event[: len(event) // 2]
    if kind == "garbage":
        return b"\x00\xff<html>\n\n"
    if kind == "half a character":
        return event.replace(b'"content":"', b'"content":"\xe5').replace(b'xt":"', b'xt":"\xe5')
    return b'data: {"choices":["x"]}\n\n' if kind == "misshapen" else b""


def _event(content: dict[str, Any]) -> bytes:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return b"data: " + text.encode() + b"\n\n"


def _abort(request: web.BaseRequest) -> None:
    if request.transport is not None:
        request.transport.abort()


@contextlib.asynccontextmanager
async def fake_engine(port: int = 0, host: str = "127.0.0.1") -> AsyncIterator[FakeEngine]:
    """A running one on a TCP port."""
    engine = FakeEngine()
    runner = web.ServerRunner(
        web.Server(engine.handle, handler_cancellation=True), shutdown_timeout=0.1
    )
    await runner.setup()
    site = web.TCPSite(runner, host, port, reuse_address=True)
    await site.start()
    bound = runner.addresses[0][1]
    engine.url = f"http://{host}:{bound}"
    try:
        yield engine
    finally:
        engine.go_on.set()
        await runner.cleanup()
