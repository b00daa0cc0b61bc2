"""`tunan chat`: asks a running server, once or in a conversation, and streams the answer."""

import argparse
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from tunan.errors import OutsideError, UsageError

if TYPE_CHECKING:
    from aiohttp import ClientError, ClientSession

EXAMPLE = """examples:
  tunan chat "What is the Peng?"
  echo "Translate: 图南" | tunan chat
  tunan chat --url http://10.0.0.1:8080          (a conversation; Ctrl-D ends it)
"""
API_KEY_VARIABLE = "TUNAN_API_KEY"

Messages = list[dict[str, str]]


def register(subparsers: Any) -> None:
    """Adds `chat` to the command line."""
    from tunan.cli.main import add_common_options

    parser = subparsers.add_parser(
        "chat",
        help="talk to a running server",
        description="Asks a running server and prints its answer as it comes.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("prompt", nargs="*", metavar="PROMPT", help="none: standard input")
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="default: %(default)s")
    parser.add_argument("--api-key", metavar="KEY", help=f"default: ${API_KEY_VARIABLE}")
    parser.add_argument("--model", metavar="NAME", help="default: the first the server has")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest answer")
    parser.add_argument("--temperature", type=float, metavar="T")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument(
        "--wait", type=float, metavar="SECONDS", help="first wait until the server is ready"
    )
    add_common_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Asks once if there is a prompt or a pipe, otherwise talks until Ctrl-D."""
    import asyncio

    for stream in (sys.stdout, sys.stdin):
        if hasattr(stream, "reconfigure"):  # whatever the locale says, models speak UTF-8
            stream.reconfigure(encoding="utf-8", errors="replace")
    prompt = " ".join(args.prompt)
    if not prompt and not sys.stdin.isatty():
        prompt = sys.stdin.read().strip()
        if not prompt:
            raise UsageError("nothing to ask: give a prompt, or pipe one in")
    return asyncio.run(_chat(args, prompt))


async def _chat(args: argparse.Namespace, prompt: str) -> int:
    import aiohttp

    key = args.api_key or os.environ.get(API_KEY_VARIABLE)
    if key and not (key.isascii() and key.isprintable()):
        raise UsageError("the API key has characters that no key has; check for a line break")
    args.url = args.url.rstrip("/")
    if not args.url.startswith(("http://", "https://")):
        raise UsageError(f"--url: {args.url!r} is not an http:// or https:// address")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    try:
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            if args.wait is not None:
                from tunan.cli.waiting import wait_until_ready

                await wait_until_ready(session, args.url, args.wait)
            model = args.model or await _first_model(session, args.url)
            options = _options(args, model)
            messages = [{"role": "system", "content": args.system}] if args.system else []
            if prompt:
                await _ask(session, args, options, messages, prompt)
            else:
                await _converse(session, args, options, messages)
    except aiohttp.InvalidURL:
        raise UsageError(f"--url: {args.url!r} is not a URL") from None
    except BrokenPipeError:  # ours, not the server's
        raise
    except (aiohttp.ClientError, OSError) as error:
        raise OutsideError(
            f"no answer from {args.url}: {_reason(error)}; is `tunan serve` running there?"
        ) from None
    return 0


def _reason(error: "ClientError | OSError") -> str:
    """Why there is no answer, without the client library's own notes on the connection."""
    cause = getattr(error, "os_error", error)
    if isinstance(cause, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause) or type(cause).__name__


def _options(args: argparse.Namespace, model: str) -> dict[str, Any]:
    options: dict[str, Any] = {"model": model, "stream": True}
    if args.max_tokens is not None:
        options["max_tokens"] = args.max_tokens
    if args.temperature is not None:
        options["temperature"] = args.temperature
    return options


async def _first_model(session: "ClientSession", url: str) -> str:
    async with session.get(f"{url}/v1/models") as answer:
        listing = await _checked(answer)
    try:
        return str(listing["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise OutsideError(f"{url} does not speak the OpenAI API") from None


async def _checked(answer: Any) -> Any:
    """The JSON of a good answer. Raises `OutsideError` with the server's own message."""
    text = await answer.text()
    try:
        content = json.loads(text)
    except ValueError:
        content = {}
    if answer.status == 200 and content:
        return content
    error = content.get("error") if isinstance(content, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    raise OutsideError(f"the server answered {answer.status}: {message or text[:200] or 'nothing'}")


async def _converse(
    session: "ClientSession", args: argparse.Namespace, options: dict[str, Any], messages: Messages
) -> None:
    import asyncio

    print(f"{options['model']} at {args.url}; Ctrl-D ends", file=sys.stderr)  # noqa: T201
    while True:
        try:
            line = (await asyncio.to_thread(input, "> ")).strip()
        except EOFError:
            print()  # noqa: T201
            return
        if line:
            answer = await _ask(session, args, options, messages, line)
            messages += [
                {"role": "user", "content": line},
                {"role": "assistant", "content": answer},
            ]


async def _ask(
    session: "ClientSession",
    args: argparse.Namespace,
    options: dict[str, Any],
    messages: Messages,
    prompt: str,
) -> str:
    """Prints the answer as it comes and returns it whole."""
    body = {**options, "messages": [*messages, {"role": "user", "content": prompt}]}
    parts: list[str] = []
    async with session.post(f"{args.url}/v1/chat/completions", json=body) as response:
        if response.status != 200:
            await _checked(response)
        async for piece in _pieces(response):
            parts.append(piece)
            if not args.json:
                print(piece, end="", flush=True)  # noqa: T201
    answer = "".join(parts)
    print(json.dumps({"model": options["model"], "answer": answer}, ensure_ascii=False)  # noqa: T201
          if args.json else "")  # fmt: skip
    return answer


async def _pieces(response: Any) -> AsyncIterator[str]:
    """The text of each server-sent event. Raises `OutsideError` for an error event."""
    finished = False
    async for raw in response.content:
        line = raw.decode("utf-8", errors="replace").strip()
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            finished = True
            continue
        event = json.loads(data)
        if "error" in event:
            raise OutsideError(f"the answer broke off: {event['error'].get('message')}")
        for choice in event.get("choices", []):
            if text := choice.get("delta", {}).get("content"):
                yield text
    if not finished:
        raise OutsideError("the answer broke off: the server closed the connection")
