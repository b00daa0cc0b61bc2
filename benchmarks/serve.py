"""Decode speed and time to first token through HTTP: vLLM's defaults against `tunan serve`.

    python -m benchmarks.serve                      about 12 minutes on 2 cores
    python -m benchmarks.serve --shape llama-1.1b --repeats 5
    python -m benchmarks.serve --variants stock stock-w8a8 tunan-w8a8 tunan-w4a8

Only one engine fits a small machine, so the variants take turns: each repeat starts every
variant, warms it with one request of each kind, and measures. `decode_N` is output tokens a
second over N requests at once (prompt of 16 tokens, 64 tokens each); `ttft_ms` is the time to
the single token of a 512-token prompt that no cache has seen. Each value is that of up to six
tries during which other programs used the least CPU; `others_*` is how many cores they used,
and runs with more than 0.1 do not count in the summary.
Writes benchmarks/results/serve.json.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.machine import describe_machine
from benchmarks.other_load import OtherLoad
from benchmarks.servers import (
    QUANTISED,
    SHAPES,
    VARIANTS,
    complete,
    earlier_runs,
    make_model,
    running,
)

RESULTS = Path(__file__).with_name("results") / "serve.json"
BATCHES = (1, 8, 32)
OUTPUT_TOKENS = 64
PROMPT_TOKENS = 16
LONG_PROMPT_TOKENS = 512
# A shared machine is seldom quiet: a sample is taken again while other programs compute.
TRIES = 6
QUIET_CORES = 0.1

_random = random.Random(0)


def main() -> None:
    """Measures, prints a table, writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="smollm2-135m")
    every = (*VARIANTS, *QUANTISED)
    parser.add_argument("--variants", nargs="+", choices=every, default=("stock", "tunan"))
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--append", action="store_true", help="add to the runs already there")
    args = parser.parse_args()
    machine = describe_machine()
    runs = earlier_runs(args.output) if args.append else []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for repeat in range(args.repeats):
            for variant in args.variants:
                model = make_model(args.shape, folder, variant)
                with running(variant, model, folder / f"cache-{variant}") as server:
                    run = {"variant": variant, "repeat": repeat, **measure(server.url)}
                run["load_average"] = round(os.getloadavg()[0], 2)
                print(json.dumps(run), flush=True)
                runs.append(run)
    table = {variant: summary(runs, variant) for variant in args.variants}
    result = {"machine": machine, "shape": args.shape, "summary": table, "runs": runs}
    args.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(table, indent=2))


def measure(url: str) -> dict[str, float]:
    """One value of each kind, after one request of each kind that does not count."""
    decode(url, max(BATCHES), 4)
    ttft_ms(url)
    samples: dict[str, Callable[[], float]] = {
        f"decode_{batch}": partial(decode, url, batch, OUTPUT_TOKENS) for batch in BATCHES
    }
    values: dict[str, float] = {}
    for kind, sample in (samples | {"ttft_ms": partial(ttft_ms, url)}).items():
        value, others = quietest(sample)
        values[kind] = round(value, 2)
        values[f"others_{kind}"] = round(others, 2)
    return values


def quietest(sample: Callable[[], float]) -> tuple[float, float]:
    """The sample during which other programs used the fewest cores, and how many they used."""
    best: tuple[float, float] | None = None
    for _ in range(TRIES):
        with OtherLoad() as load:
            value = sample()
        if best is None or load.cores < best[1]:
            best = (value, load.cores)
        if load.cores < QUIET_CORES:
            break
    assert best is not None
    return best


def decode(url: str, batch: int, tokens: int) -> float:
    """Output tokens a second over `batch` requests at once."""
    prompts = [_prompt(PROMPT_TOKENS) for _ in range(batch)]
    started = time.perf_counter()
    with ThreadPoolExecutor(batch) as pool:
        answers = list(pool.map(lambda prompt: complete(url, prompt, tokens), prompts))
    seconds = time.perf_counter() - started
    return sum(int(answer["usage"]["completion_tokens"]) for answer in answers) / seconds


def ttft_ms(url: str) -> float:
    """Milliseconds to the only token of a long prompt."""
    prompt = _prompt(LONG_PROMPT_TOKENS)
    started = time.perf_counter()
    complete(url, prompt, 1)
    return (time.perf_counter() - started) * 1000


def summary(runs: list[dict[str, object]], variant: str) -> dict[str, dict[str, float]]:
    """Median, least and most of each kind, over the runs that nothing disturbed."""
    table: dict[str, dict[str, float]] = {}
    for kind in (*(f"decode_{batch}" for batch in BATCHES), "ttft_ms"):
        values = [
            float(str(run[kind]))
            for run in runs
            if run["variant"] == variant and float(str(run[f"others_{kind}"])) <= QUIET_CORES
        ]
        if values:
            median = round(statistics.median(values), 2)
            extremes = {"least": min(values), "most": max(values), "quiet_runs": len(values)}
            table[kind] = {"median": median, **extremes}
    return table


def _prompt(length: int) -> list[int]:
    return [_random.randrange(3, 250) for _ in range(length)]


if __name__ == "__main__":
    main()
