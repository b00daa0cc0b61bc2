"""What a gateway adds to every token: Tunan's, with and without resume, vllm-router and nginx.

    python -m benchmarks.gateway                        about 4 minutes on 2 cores
    python -m benchmarks.gateway --vllm-router /venv/bin/vllm-router --nginx /usr/sbin/nginx

Two fake engines (gateway_engine.py) stand behind each gateway; `direct` is one of them without any.
`paced`: 64 streams at once, a token each 20 ms. An event's delay is the time from its write in the
engine to its read in the client; `added` values are less those of `direct`. `flood`: 64 streams
as fast as they go. `events_per_cpu_s` is events over the CPU seconds that the gateway's processes
used, which does not depend on what client and engine use of a small machine. Gateways take turns;
medians of the rounds. Writes benchmarks/results/gateway.json.
"""

import argparse
import asyncio
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.chaos_check import quantile
from benchmarks.gateway_subjects import Subject, free_port, subjects, until_answering
from benchmarks.machine import describe_machine

RESULTS = Path(__file__).with_name("results") / "gateway.json"
STREAMS = 64
GAP_MS = 20.0
PACED_TOKENS, FLOOD_TOKENS = 150, 2000
_STAMP = re.compile(rb'"text": ?"(\d{19})"')


@dataclass
class Heard:
    """What all streams of one run got: delays and times to the first event, in milliseconds."""

    delays: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    events: int = 0
    seconds: float = 0.0


def main() -> None:
    """Measures, prints a line a run, writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--vllm-router", metavar="PROGRAM", help="compare with it")
    parser.add_argument("--nginx", metavar="PROGRAM", help="compare with it")
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    # So that a benchmark that is stopped stops its processes too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    machine = describe_machine()
    runs = []
    for number in range(args.rounds):
        for subject in subjects(args.vllm_router, args.nginx):
            run = {"subject": subject.name, "round": number, **measure(subject, args.streams)}
            print(json.dumps(run), flush=True)
            runs.append(run)
    sizes = {"streams": args.streams, "gap_ms": GAP_MS}
    result = {"machine": machine, **sizes, "summary": summary(runs), "runs": runs}
    args.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def measure(subject: Subject, streams: int) -> dict[str, float]:
    """Both kinds of load, each with engines and a gateway of its own."""
    figures: dict[str, float] = {}
    for kind, gap_ms, tokens in (("paced", GAP_MS, PACED_TOKENS), ("flood", 0.0, FLOOD_TOKENS)):
        with running(subject, gap_ms) as (port, process):
            asyncio.run(hear(port, min(streams, 8), 20))  # connections and caches
            before = _cpu_s(process)
            heard = asyncio.run(hear(port, streams, tokens))
            used = _cpu_s(process) - before
        if kind == "paced":
            for name, values in (("delay", heard.delays), ("first", heard.firsts)):
                ordered = sorted(values)
                figures[f"{name}_p50_ms"] = round(quantile(ordered, 0.5), 3)
                figures[f"{name}_p99_ms"] = round(quantile(ordered, 0.99), 3)
            figures["cpu_s_per_10000_tokens"] = round(used / heard.events * 10_000, 3)
        else:
            figures["events_per_s"] = round(heard.events / heard.seconds)
            figures["events_per_cpu_s"] = round(heard.events / used) if used else 0
    return figures


@contextmanager
def running(subject: Subject, gap_ms: float) -> Iterator[tuple[int, "psutil.Process | None"]]:
    """Two engines and the gateway; yields the port to ask and the gateway's process."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engines = [free_port(), free_port()]
        for port in engines:
            engine = [sys.executable, "-m", "benchmarks.gateway_engine", str(port)]
            stack.enter_context(_process([*engine, "--gap-ms", str(gap_ms)], folder / str(port)))
            until_answering(port, "/v1/models")
        if subject.command is None:
            yield engines[0], None
            return
        port = free_port()
        words = subject.command(port, engines, folder)
        process = stack.enter_context(_process(words, folder / subject.name))
        until_answering(port, subject.ready_path)
        yield port, psutil.Process(process.pid)


async def hear(port: int, streams: int, tokens: int) -> Heard:
    """`streams` requests at once, of `tokens` events each, read to their ends."""
    heard = Heard()
    started = time.perf_counter()
    await asyncio.gather(*(_stream(port, number, tokens, heard) for number in range(streams)))
    heard.seconds = time.perf_counter() - started
    if heard.events != streams * tokens:
        raise SystemExit(f"{heard.events} events instead of {streams * tokens}")
    return heard


async def _stream(port: int, number: int, tokens: int, heard: Heard) -> None:
    await asyncio.sleep(number * GAP_MS / 1000 / STREAMS)  # as engines answer: not in step
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = {"model": "model", "prompt": f"{number} stories", "max_tokens": tokens, "stream": True}
    data = json.dumps({**body, "temperature": 0}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    asked = time.monotonic_ns()
    writer.write(head.encode() + data)
    raw, text = bytearray(), b""
    while b"[DONE]" not in text and (piece := await reader.read(1 << 16)):
        now = time.monotonic_ns()
        raw += piece
        text += dechunked(raw)
        end = 0
        for match in _STAMP.finditer(text):
            if asked:
                heard.firsts.append((now - asked) / 1e6)
                asked = 0
            heard.delays.append((now - int(match[1])) / 1e6)
            heard.events += 1
            end = match.end()
        text = text[end:]
    writer.close()


def dechunked(raw: bytearray) -> bytes:
    """The data of the whole chunks at the start of `raw`, which are taken out of it.

    A gateway may cut events anywhere (RFC 9112, section 7.1). A head of a response is skipped.
    """
    if raw.startswith(b"HTTP/"):
        end = raw.find(b"\r\n\r\n")
        if end < 0:
            return b""
        del raw[: end + 4]
    found, at = [], 0
    while (line := raw.find(b"\r\n", at)) >= 0:
        size = int(raw[at:line], 16)
        end = line + 2 + size
        if len(raw) < end + 2:
            break
        found.append(bytes(raw[line + 2 : end]))
        at = end + 2
    del raw[:at]
    return b"".join(found)


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Medians of the rounds by subject; `added_` ones are less the median of `direct`."""
    table: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(str(run["subject"]) for run in runs):
        mine = [run for run in runs if run["subject"] == name]
        figures = [key for key in mine[0] if key not in ("subject", "round")]
        table[name] = {
            key: round(statistics.median(run[key] for run in mine), 3) for key in figures
        }
    for found in table.values():
        for key in [key for key in found if key.endswith("_ms")]:
            found[f"added_{key}"] = round(found[key] - table["direct"][key], 3)
    return table


def _cpu_s(process: psutil.Process | None) -> float:
    """CPU seconds of a process and those it started."""
    if process is None:
        return 0.0
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


@contextmanager
def _process(words: Sequence[str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with log.with_suffix(".log").open("wb") as output:
        process = subprocess.Popen(words, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
