"""Writes the tables of docs/*/benchmarks.md and the READMEs from the results, none by hand.

    python -m benchmarks.report

A table stands between `<!-- results: NAME -->` and `<!-- end -->`; NAME.json is its source.
Medians are shown, with the least and the most where there were several runs.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report_chinese import CHINESE

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = {
    "docs/en/benchmarks.md": "en",
    "docs/zh/benchmarks.md": "zh",
    "docs/en/quantization.md": "en",
    "docs/zh/quantization.md": "zh",
    "README.md": "en",
    "README.zh-CN.md": "zh",
}
MARKED = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

Rows = list[Sequence[object]]


def main() -> None:
    """Rewrites the pages in place."""
    for page, language in PAGES.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        (ROOT / page).write_text(filled(text, language), encoding="utf-8")


def filled(text: str, language: str) -> str:
    """A page with its tables as the results have them."""
    return MARKED.sub(lambda m: f"{m[1]}{_table(m[2], language)}\n{m[3]}", text)


def _table(name: str, language: str) -> str:
    results = RESULTS / f"{name}.json"
    if not results.exists():
        return _word("No results are committed yet.", language)
    header, *rows = TABLES[name](json.loads(results.read_text(encoding="utf-8")))
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(_word(str(cell), language) for cell in line) + " |" for line in lines
    )


def _word(text: str, language: str) -> str:
    return CHINESE.get(text, text) if language == "zh" else text


def _convert(content: Any) -> Rows:
    keys = ("case", "source_gb", "written_gb", "seconds", "gb_written_per_second")
    header = ("case", "source GB", "written GB", "seconds", "GB/s written", "peak anonymous MB")
    return [header, *([run[k] for k in (*keys, "peak_anonymous_mb")] for run in content["runs"])]


def _load(content: Any) -> Rows:
    figures = ("seconds", "read_mb", "peak_anonymous_mb")
    header: list[object] = ["page cache", "ranks", "loader, blocks"]
    for name in ("seconds", "MB from disk", "peak anonymous MB"):
        header += [name, "times vLLM's"]
    rows: Rows = [header]
    for case in content["cases"]:
        same = (case["ranks"], case["cache"])
        base = next(
            other
            for other in content["cases"]
            if (other["ranks"], other["cache"]) == same and other["loader"] == "default"
        )
        blocks = f"{case['loader']}, {case['blocks']}" + (", first load" if case["first"] else "")
        row = [case["cache"], case["ranks"], blocks]
        for figure in figures:
            # What a warm cache still reads is of other files: nothing to compare.
            idle = figure == "read_mb" and case["cache"] == "warm"
            ratio = "-" if idle else f"{case[figure]['median'] / base[figure]['median']:.2f}"
            row += [_spread(case[figure], "min", "max"), ratio]
        rows.append(row)
    return rows


def _startup(content: Any) -> Rows:
    rows: Rows = [("server", "caches", "seconds to first token", "runs")]
    for row in content["summary"]:
        seconds = _range(row["first_token_median_s"], row["least_s"], row["most_s"])
        rows.append((row["variant"], row["caches"], seconds, row["runs"]))
    return rows


def _parity(content: Any) -> Rows:
    header = ("model", "type", "prompts", "same to the end", "earliest divergence, token")
    rows: Rows = [(*header, "largest gap, steps of bfloat16")]
    for dtype, models in content["models"].items():
        for model, found in models.items():
            parted = found["divergences"]
            first = min((d["token"] for d in parted), default="-")
            widest = max(
                (f"{d['gap_in_bfloat16_steps']:g}" for d in parted), key=float, default="-"
            )
            rows.append((model, dtype, found["prompts"], found["same"], first, widest))
    return rows


def _serve(content: Any) -> Rows:
    kinds = ("decode_1", "decode_8", "decode_32", "ttft_ms")
    header = ("server", "tokens/s, 1 request", "8 requests", "32 requests")
    return [
        (*header, "time to first token, ms"),
        *(
            (variant, *(_spread(found[kind], "least", "most") for kind in kinds))
            for variant, found in content["summary"].items()
        ),
    ]


def _cpu(content: Any) -> Rows:
    """Tokens a second; decode_N is of N sequences, prefill_N of a prompt of N tokens."""
    kinds = list(next(iter(content["models"].values()))["summary"])
    rows: Rows = [("model", "engine", *kinds)]
    for model, found in content["models"].items():
        for engine in found["summary"][kinds[0]]:
            name = "reading memory, GB/s" if engine == "read_gb_s" else engine
            spreads = (found["summary"][kind][engine] for kind in kinds)
            rows.append((model, name, *(_spread(one, "least", "most") for one in spreads)))
    return rows


def _kernels(content: Any) -> Rows:
    """Microseconds of one layer; the last two columns are times faster than vLLM's kernel."""
    known = {
        "w8": "Tunan W8A8",
        "w4": "Tunan W4A8",
        "w4g32": "Tunan W4A8, groups of 32",
        "vllm_w8a8": "vLLM W8A8",
        "vllm_bf16": "vLLM bf16",
        "read": "reading the int8 weights",
    }
    subjects = [name for name in known if name in content["layers"][0]["microseconds"]]
    names = [known[name] for name in subjects]
    rows: Rows = [
        ("layer", "threads", "rows", *names, "W8A8 over vLLM's W8A8", "W4A8 over vLLM's bf16")
    ]
    for case in content["layers"]:
        micros, spread = case["microseconds"], case["from_to"]
        cells = (_range(round(micros[s]), *(round(v) for v in spread[s])) for s in subjects)
        shape = f"{case['inputs']} x {case['outputs']}"
        ratios = (f"{case[k]:.2f}" for k in ("w8_over_vllm_w8a8", "w4_over_vllm_bf16"))
        rows.append((shape, case["threads"], case["rows"], *cells, *ratios))
    return rows


def _diagnose(content: Any) -> Rows:
    accuracy = content["accuracy"]
    ranks = f"{accuracy['first_rank_right']} / {accuracy['first_rank_logs']}"
    rows: Rows = [
        ("figure", "value"),
        ("entries", accuracy["entries"]),
        ("logs with a known error", accuracy["logs_with_a_known_error"]),
        ("logs with an unknown error or none", accuracy["logs_with_an_unknown_error_or_none"]),
        ("precision", f"{accuracy['precision']:.3f}"),
        ("recall", f"{accuracy['recall']:.3f}"),
        ("rank that failed first", ranks),
        *_posted(content["posts"]),
    ]
    for name, found in content["speed"].items():
        rows.append((f"{name}: seconds", _spread(found["seconds"], "least", "most")))
        rows.append((f"{name}: CPU seconds", _spread(found["cpu_seconds"], "least", "most")))
        rows.append((f"{name}: peak MiB", found["peak_mib"]))
    return rows


def _posted(batches: Any) -> Rows:
    """Of errors that people posted: what was named before it was worked on, and now."""
    rows: Rows = [
        (f"posted, {name}, named at first", f"{b['named_at_first']} / {b['with_a_cause_to_name']}")
        for name, b in batches.items()
    ]
    wrong, now, logs = (
        sum(batch[figure] for batch in batches.values())
        for figure in ("named_wrongly_at_first", "named_now", "logs_now")
    )
    return [
        *rows,
        ("posted, named wrongly at first", wrong),
        ("posted, logs named now", f"{now} / {logs}"),
    ]


def _kv(content: Any) -> Rows:
    """Microseconds of one step of attention; the error is that of the int8 cache."""
    engines = {"int8": "Tunan, int8", "bf16": "Tunan, bf16", "vllm": "vLLM, bf16"}
    rows: Rows = [("heads", "tokens", "threads", *engines.values(), "error of int8")]
    for case in content["decode"]:
        found = (case[engine] for engine in engines)
        cells = (_range(*(round(one[k]) for k in ("us", "least_us", "most_us"))) for one in found)
        error = f"{case['int8']['relative_error']:.4f}"
        rows.append((case["shape"], case["length"], case["threads"], *cells, error))
    return rows


def _spread(found: Mapping[str, float], least: str, most: str) -> str:
    return _range(found["median"], found[least], found[most])


def _range(median: float, least: float, most: float) -> str:
    return f"{median:g}" if least == most else f"{median:g} ({least:g}-{most:g})"


def _chaos(content: Any) -> Rows:
    """Counts over all answers of a scenario; tokens as lost / given twice / changed."""
    header = ("scenario", "replicas", "answers", "under way", "lost", "tokens")
    rows: Rows = [(*header, "stall p50, s", "stall p99, s", "whole again after, s")]
    for found in content["scenarios"]:
        tokens = " / ".join(str(found[f"tokens_{k}"]) for k in ("lost", "duplicated", "changed"))
        counts = (found["requests"], found["hit"], found["requests_lost"], tokens)
        stalls = (found["stall_p50_s"], found["stall_p99_s"], found["back_s"])
        rows.append((found["name"], found["setup"], *counts, *stalls))
    return rows


def _gateway(content: Any) -> Rows:
    added = ("added_delay_p50_ms", "added_delay_p99_ms", "added_first_p50_ms", "added_first_p99_ms")
    figures = (*added, "cpu_s_per_10000_tokens", "events_per_s", "events_per_cpu_s")
    header = ("gateway", "added delay p50, ms", "p99, ms", "added to the first token p50, ms")
    rows: Rows = [(*header, "p99, ms", "CPU s for 10,000 tokens", "events/s", "events per CPU s")]
    for name, found in content["summary"].items():
        rows.append((name, *(found[figure] or "-" for figure in figures)))
    return rows


def _quality(content: Any) -> Rows:
    """What quantising adds to the perplexity, with its standard error, beside what it may add."""
    header = ("scheme", "perplexity", "aim", "KL", "same likeliest token", "MB written")
    rows: Rows = [(*header, "seconds, report included")]
    for name, found in content["cases"].items():
        added = f"{found['perplexity_increase']:+.2%} ± {found['standard_error']:.2%}"
        agreed = f"{found['greedy_agreement']:.1%}"
        measured = (added, f"{found['bar']:+.1%}", f"{found['kl_divergence']:.4f}", agreed)
        rows.append((name, *measured, found.get("megabytes", "-"), found.get("seconds", "-")))
    return rows


TABLES: Mapping[str, Callable[[Any], Rows]] = {
    "convert": _convert,
    "load": _load,
    "parity": _parity,
    "startup": _startup,
    "serve": _serve,
    "cpu": _cpu,
    "kernels": _kernels,
    "kv": _kv,
    "diagnose": _diagnose,
    "chaos": _chaos,
    "gateway": _gateway,
    "quality": _quality,
}

if __name__ == "__main__":
    main()
