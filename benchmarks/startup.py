"""Seconds from starting a server to its first token, with empty and with filled caches.

    python -m benchmarks.startup                    about 15 minutes on 2 cores
    python -m benchmarks.startup --repeats 5 --variants stock-eager tunan

Each repeat starts every variant twice in a row: with empty caches (compile caches, vLLM's
model information) and again with what that left. The files of Python, torch and the model are
in the page cache in both. `tunan` counts its warm-up in. Writes benchmarks/results/startup.json.
"""

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.servers import SHAPES, VARIANTS, Running, earlier_runs, make_model, running

# The steps of tunan/engine/timeline.py in their order, and what each is made of.
STEPS = {
    "process": "the command: settings, machine, front door",
    "imports": "torch and vLLM",
    "flags": "vLLM's flags",
    "configuration": "vLLM's configuration, the model's class",
    "fork": "tokenizer, EngineCore's process",
    "model": "the model built, its weights mapped and packed (of a converted checkpoint)",
    "engine": "the KV cache, the first step",
}
RESULTS = Path(__file__).with_name("results") / "startup.json"


def main() -> None:
    """Measures, prints a table, writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="smollm2-135m")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--append", action="store_true", help="add to the runs already there")
    args = parser.parse_args()
    machine = describe_machine()
    runs = earlier_runs(args.output) if args.append else []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = make_model(args.shape, folder)
        for repeat in range(args.repeats):
            for variant in args.variants:
                cache = folder / f"cache-{repeat}-{variant}"
                for caches in ("empty", "filled"):
                    with running(variant, model, cache) as server:
                        run = {
                            "variant": variant,
                            "caches": caches,
                            "repeat": repeat,
                            "load_average": round(os.getloadavg()[0], 2),
                            "ready_s": round(server.ready_s, 2),
                            "first_token_s": round(server.first_token_s, 2),
                            **breakdown(server),
                        }
                    print(json.dumps(run), flush=True)
                    runs.append(run)
    table = [summary(runs, v, c) for v in args.variants for c in ("empty", "filled")]
    result = {
        "machine": machine,
        "shape": args.shape,
        "steps": STEPS,
        "summary": table,
        "runs": runs,
    }
    args.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for row in table:
        print(row)


def breakdown(server: Running) -> dict[str, dict[str, float]]:
    """Where the seconds to the first token went, of a server that says so: {"steps", "cpu"}."""
    if not server.timeline.exists():
        return {}
    done = _done(server.timeline.read_text(encoding="utf-8"))
    steps: dict[str, float] = {}
    taken: dict[str, float] = {}
    before = (server.started, 0.0, "")
    for step in (name for name in STEPS if name in done):
        steps[step] = round(done[step][0] - before[0], 2)
        if done[step][2] == before[2]:
            taken[step] = round(done[step][1] - before[1], 2)
        before = done[step]
    steps["API, warm-up"] = round(server.started + server.ready_s - before[0], 2)
    steps["first token"] = round(server.first_token_s - server.ready_s, 2)
    return {"steps": steps, "cpu": taken}


def _done(timeline: str) -> dict[str, tuple[float, float, str]]:
    """When, after how much CPU time and by which process each step was done."""
    lines = (line.split(maxsplit=3) for line in timeline.splitlines())
    return {step: (float(at), float(cpu), pid) for at, cpu, pid, step in lines}


def summary(runs: list[dict[str, object]], variant: str, caches: str) -> dict[str, object]:
    """Median, least and most seconds to the first token."""
    seconds = [
        float(str(run["first_token_s"]))
        for run in runs
        if run["variant"] == variant and run["caches"] == caches
    ]
    steps = [
        run["steps"]
        for run in runs
        if run["variant"] == variant and run["caches"] == caches and "steps" in run
    ]
    return {
        "variant": variant,
        "caches": caches,
        "steps_median_s": _medians(steps),
        "first_token_median_s": round(statistics.median(seconds), 2),
        "least_s": min(seconds),
        "most_s": max(seconds),
        "runs": len(seconds),
    }


def _medians(steps: list[Any]) -> dict[str, float]:
    names = steps[0] if steps else ()
    return {
        name: round(statistics.median(each[name] for each in steps if name in each), 2)
        for name in names
    }


if __name__ == "__main__":
    main()
