"""A fake engine as fast as Python allows: one answer for everybody, its bytes made beforehand.

    python -m benchmarks.gateway_engine PORT --gap-ms 20

Streams as many events as `max_tokens` of the request says, in vLLM's form. The text of an event is
the time at which it was sent, in nanoseconds of the machine's monotonic clock, so that a client on
the same machine knows how long it was on its way.
"""

import argparse
import asyncio
import json
import re
import time

_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_TOKENS = re.compile(rb'"max_tokens": *(\d+)')
_STAMP = b"0" * 19  # nanoseconds: as many digits until the year 2286
_MODELS = json.dumps({"object": "list", "data": [{"id": "model", "object": "model"}]}).encode()


def main() -> None:
    """Serves until it is killed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("port", type=int)
    parser.add_argument("--gap-ms", type=float, default=0.0, help="between two events; 0: none")
    args = parser.parse_args()
    asyncio.run(_serve(args.port, args.gap_ms / 1000))


async def _serve(port: int, gap_s: float) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await _one(reader, writer, gap_s):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


async def _one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gap_s: float) -> bool:
    head = await reader.readuntil(b"\r\n\r\n")
    length = _LENGTH.search(head)
    body = await reader.readexactly(int(length[1])) if length else b""
    if not head.startswith(b"POST"):
        writer.write(_whole(_MODELS))
        return True
    count = int(found[1]) if (found := _TOKENS.search(body)) else 16
    writer.write(_HEAD)
    for number in range(count):
        before, after = _EVENTS[0 if number == 0 else 2 if number == count - 1 else 1]
        writer.write(before + b"%019d" % time.monotonic_ns() + after)
        await writer.drain()
        if gap_s:
            await asyncio.sleep(gap_s)
        elif number % 16 == 0:
            await asyncio.sleep(0)
    writer.write(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    await writer.drain()
    return True


def _whole(body: bytes) -> bytes:
    head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: "
    return f"{head}{len(body)}\r\n\r\n".encode() + body


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n" % len(data) + data + b"\r\n"


def _event(first: bool, last: bool) -> tuple[bytes, bytes]:
    """What stands before and after the time stamp in an event, chunk framing included."""
    choice = {
        "index": 0,
        "text": _STAMP.decode(),
        "logprobs": None,
        "finish_reason": "length" if last else None,
        "stop_reason": None,
        "prompt_token_ids": [1, 2, 3, 4, 5] if first else None,
        "token_ids": [1234],
    }
    head = {"id": "cmpl-0123456789abcdef", "object": "text_completion", "created": 1700000000}
    text = json.dumps({**head, "model": "model", "choices": [choice]}, separators=(",", ":"))
    before, after = _chunk(b"data: " + text.encode() + b"\n\n").split(_STAMP)
    return before, after


_EVENTS = (_event(True, False), _event(False, False), _event(False, True))

if __name__ == "__main__":
    main()
