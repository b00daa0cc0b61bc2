"""What clients notice when replicas die, hang or are cut off (chaos_scenarios.yaml).

    python -m benchmarks.chaos                          about 15 minutes on 2 cores
    python -m benchmarks.chaos --only "standby: kill"   those whose "setup: name" contains it

    tunan convert .models/SmolLM2-135M-Instruct.Q4_1.gguf DIR --quantize w8a8; ... --model DIR

Real services with two replicas of the sample model (`make run` converts it, unquantised; the
committed results are of W8A8), real processes killed, a real TCP proxy. A run of the load that
nothing disturbs comes first for each setup; the tokens of every answer are held against it. In
bfloat16 another batch gives other tokens now and then, failure or not; so the model runs in
float32. `hit`: answers that were under way when the first event happened. A stall is the longest
gap between two tokens of an answer. `back_s` is the time from the first event until every replica
is ready again, as the front door's /ready tells; where a gateway is killed, until the first token
of a new request (`address_s`: until the other gateway answers at all). That scenario needs root,
etcd-server, iproute2, iputils-arping.
Writes benchmarks/results/chaos.json; status 1 if a check does not hold.
"""

import argparse
import asyncio
import json
import math
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.chaos_check import broken, judged, taken_over
from benchmarks.chaos_gateways import gateways
from benchmarks.chaos_network import NetworkError
from benchmarks.chaos_scenario import Event, Scenario, read
from benchmarks.chaos_service import Service, ServiceError, service
from benchmarks.chaos_streams import Ask, Progress, Received, load, run_load, run_persistent
from benchmarks.machine import describe_machine

RESULTS = Path(__file__).with_name("results") / "chaos.json"
SAMPLE = Path(__file__).parents[1] / ".models" / "smollm2-135m-instruct"
PATIENCE_S = 300.0


def main() -> int:
    """Runs the scenarios, prints a line for each, writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=SAMPLE)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256, help="of each answer")
    parser.add_argument("--dtype", default="float32", help="auto: as the checkpoint is")
    parser.add_argument("--only", default="", help='whose "setup: name" contains this')
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    # So that a benchmark that is stopped stops its services too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if problem := not_converted(args.model):
        raise SystemExit(problem)
    machine = describe_machine()
    chosen = [one for one in read() if args.only in f"{one.setup}: {one.name}"]
    asks = load("model", args.streams, args.tokens)
    try:
        rows = asyncio.run(run_all(chosen, args.model, args.dtype, asks))
    except (ServiceError, NetworkError) as error:
        raise SystemExit(str(error)) from None
    sizes = {
        "model": args.model.name,
        "dtype": args.dtype,
        "streams": args.streams,
        "tokens": args.tokens,
    }
    result = {"machine": machine, **sizes, "scenarios": rows}
    args.output.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return 1 if any(row["broken"] for row in rows) else 0


def not_converted(model: Path) -> str:
    """What to do about a `model` that `tunan serve` could not start; "" if it could."""
    if (model / "config.json").is_file():
        return ""
    return f"{model}: no checkpoint; `make run` converts the sample model, --model names another"


async def run_all(
    scenarios: Sequence[Scenario], model: Path, dtype: str, asks: Sequence[Ask]
) -> list[dict[str, Any]]:
    """The scenarios in their order; those of one setup share their services."""
    rows = []
    for setup, group in groupby(scenarios, key=lambda one: one.setup):
        with tempfile.TemporaryDirectory(prefix="chaos-") as scratch:
            shared = setup == "gateways"
            made = (
                gateways(model, dtype, Path(scratch))
                if shared
                else service(setup, model, dtype, Path(scratch))
            )
            async with made as running:
                expected = await undisturbed(running, asks)
                for scenario in group:
                    row = {"name": scenario.name, "setup": setup}
                    one = run_takeover if shared else run
                    row |= await one(scenario, running, asks, expected)
                    row["load_average"] = round(os.getloadavg()[0], 2)
                    print(json.dumps(row, ensure_ascii=False), flush=True)
                    rows.append(row)
    return rows


async def undisturbed(running: Service, asks: Sequence[Ask]) -> dict[str, Received]:
    """Each request's answer when nothing happens. Raises SystemExit if one fails then."""
    enough = asyncio.Event()
    enough.set()
    found = dict((await run_load(running.url, asks, Progress(), enough)).answers)
    problems = [f"{name}: {one.problem}" for name, one in found.items() if one.problem]
    if problems:
        raise SystemExit(f"an undisturbed request failed: {problems[0]}")
    return found


async def run(
    scenario: Scenario, running: Service, asks: Sequence[Ask], expected: dict[str, Received]
) -> dict[str, Any]:
    """One scenario's figures and the checks that do not hold."""
    progress, enough = Progress(), asyncio.Event()
    total = sum(len(one.ids) for one in expected.values())
    if not scenario.sustained:
        enough.set()
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        loaded = tasks.create_task(run_load(running.url, asks, progress, enough))
        watched = tasks.create_task(running.watch())
        first = await _disturb(scenario.events, running, progress, total)
        if scenario.sustained:
            await running.until_whole()
            enough.set()
        answers = (await loaded).answers
        whole = await running.until_whole()
        watched.cancel()
    if not whole:
        raise SystemExit(f"not every replica came back; see {running.folder}/*.log")
    figures = judged(expected, answers)
    figures["hit"] = sum(one.began < first < one.ended for _, one in answers)
    figures["back_s"] = round(max(0.0, running.last_missing - first), 2)
    return {**figures, "broken": broken(figures, scenario.most)}


async def run_takeover(
    scenario: Scenario, running: Service, asks: Sequence[Ask], expected: dict[str, Received]
) -> dict[str, Any]:
    """As `run`, where it is the gateway that dies: its clients ask again at the same address."""
    progress = Progress()
    total = sum(len(one.ids) for one in expected.values())
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        loaded = tasks.create_task(run_persistent(running.url, asks, progress))
        killed = await _disturb(scenario.events, running, progress, total)
        answered = await running.until_answered()
        clients = await loaded
    figures = taken_over(expected, clients, killed)
    figures["address_s"] = round(answered - killed, 2)
    return {**figures, "broken": broken(figures, scenario.most)}


async def _disturb(
    events: Sequence[Event], running: Service, progress: Progress, total: int
) -> float:
    """The events in their turn; when the first happened (time.perf_counter)."""
    first = math.inf
    for event in events:
        await progress.reaches(int(event.at * total))
        first = min(first, await running.inflict(event))
    return first


if __name__ == "__main__":
    sys.exit(main())
