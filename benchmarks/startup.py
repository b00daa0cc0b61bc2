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

from benchmarks.machine import describe_machine
from benchmarks.servers import SHAPES, VARIANTS, earlier_runs, make_model, running

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
                        }
                    print(json.dumps(run), flush=True)
                    runs.append(run)
    table = [summary(runs, v, c) for v in args.variants for c in ("empty", "filled")]
    result = {"machine": machine, "shape": args.shape, "summary": table, "runs": runs}
    args.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for row in table:
        print(row)


def summary(runs: list[dict[str, object]], variant: str, caches: str) -> dict[str, object]:
    """Median, least and most seconds to the first token."""
    seconds = [
        float(str(run["first_token_s"]))
        for run in runs
        if run["variant"] == variant and run["caches"] == caches
    ]
    return {
        "variant": variant,
        "caches": caches,
        "first_token_median_s": round(statistics.median(seconds), 2),
        "least_s": min(seconds),
        "most_s": max(seconds),
        "runs": len(seconds),
    }


if __name__ == "__main__":
    main()
