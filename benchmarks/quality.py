"""Measures what quantising costs the sample model, with what `tunan convert` itself reports.

    python -m benchmarks.quality                   every scheme, and the int8 cache of CPUs
    python -m benchmarks.quality --only w8a8       what was measured before stays in the results

Each scheme is one `tunan convert --report` in a process of its own, on 16384 tokens of the
shipped text that nothing is fitted on; its seconds are the conversion's with the report, its peak
is of resident memory, the pages of mapped files included. Two cases are of the unquantised model:
the cache is rounded as `int8_per_token_head` rounds it; weights alone become int4 to nearest,
inputs staying as they are, which is what a second rounding of the source's own four bits costs.
Writes benchmarks/results/quality.json.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.machine import describe_machine
from tests.sample import sample_gguf

if TYPE_CHECKING:
    import torch

    LogProbs = Iterator[tuple[torch.Tensor, torch.Tensor]]

RESULTS = Path(__file__).with_name("results") / "quality.json"
TOKENS = 16384
# Options of `tunan convert`, and the perplexity that the project allows itself to add.
SCHEMES: Mapping[str, tuple[tuple[str, ...], float]] = {
    "w8a8, nearest": (("--quantize", "w8a8", "--method", "nearest"), 0.005),
    "w8a8, fitted": (("--quantize", "w8a8", "--method", "fitted"), 0.005),
    "w8a8, fitted, rotated": (
        ("--quantize", "w8a8", "--method", "fitted", "--rotate"),
        0.005,
    ),
    "w4a8 g32, nearest": (("--quantize", "w4a8", "--method", "nearest"), 0.03),
    "w4a8 g32, fitted": (("--quantize", "w4a8", "--method", "fitted"), 0.03),
    "w4a8 g32, fitted, rotated": (
        ("--quantize", "w4a8", "--method", "fitted", "--rotate"),
        0.03,
    ),
    "w4a8 g32, fitted, 6 bits": (
        ("--quantize", "w4a8", "--method", "fitted", "--average-bits", "6"),
        0.03,
    ),
    "w4a8 g32, fitted, 6.5 bits": (
        ("--quantize", "w4a8", "--method", "fitted", "--average-bits", "6.5"),
        0.03,
    ),
    "w4a8 g128, fitted": (
        ("--quantize", "w4a8", "--group-size", "128", "--method", "fitted"),
        0.03,
    ),
}
CACHE, CACHE_BAR = "int8 KV cache", 0.001
WEIGHTS, WEIGHTS_BAR = "int4 g32, nearest, weights alone", 0.03
KEPT = ("tokens", "perplexity_before", "perplexity", "perplexity_increase", "standard_error")
_CONVERT = """
import json, resource, sys, time
from tunan.cli.main import main
begin = time.monotonic()
status = main(sys.argv[1:])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": round(time.monotonic() - begin, 1), "peak_mib": peak >> 10}))
sys.exit(status)
"""


def main() -> None:
    """Measures what is asked for and adds it to the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default="", help="names that hold this")
    parser.add_argument("--tokens", type=int, default=TOKENS)
    args = parser.parse_args()
    source = sample_gguf()
    for name, (options, bar) in SCHEMES.items():
        if args.only in name:
            _keep(name, _converted(source, options, args.tokens) | {"bar": bar})
    if args.only in WEIGHTS:
        _keep(WEIGHTS, _weights_alone(source, args.tokens) | {"bar": WEIGHTS_BAR})
    if args.only in CACHE:
        _keep(CACHE, _cache(source, args.tokens) | {"bar": CACHE_BAR})


def _keep(name: str, found: dict[str, Any]) -> None:
    """Written at once, so that a run that is cut short keeps what it has."""
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    cases = results.get("cases", {}) | {name: found}
    order = [known for known in (*SCHEMES, WEIGHTS, CACHE) if known in cases]
    results = {
        "machine": describe_machine(),
        "model": "SmolLM2-135M-Instruct, from its Q4_1 GGUF",
        "cases": {known: cases[known] for known in order},
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(name, json.dumps(found))


def _converted(source: Path, options: tuple[str, ...], tokens: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        asked = ["convert", str(source), f"{folder}/out", *options, "--json"]
        asked += ["--report", "--report-tokens", str(tokens)]
        done = subprocess.run(
            [sys.executable, "-c", _CONVERT, *asked], stdout=subprocess.PIPE, text=True, check=True
        )
        manifest, cost = (json.loads(line) for line in done.stdout.splitlines()[-2:])
        size = sum(file.stat().st_size for file in Path(folder, "out").glob("*.safetensors"))
    quality = manifest["quality"]
    kept = {key: quality[key] for key in (*KEPT, "kl_divergence", "greedy_agreement")}
    return {**kept, **cost, "megabytes": round(size / 1e6, 1)}


def _cache(source: Path, tokens: int) -> dict[str, Any]:
    from tunan.checkpoint.quantize.report import logprobs, measured_text
    from tunan.checkpoint.quantize.running import run_source
    from tunan.checkpoint.source import open_source

    running, text = run_source(open_source(source)), measured_text()
    exact = logprobs(running, text, tokens)
    return _compared(exact, logprobs(running, text, tokens, _rounding_cache))


def _weights_alone(source: Path, tokens: int) -> dict[str, Any]:
    from tunan.checkpoint.quantize.report import logprobs, measured_text
    from tunan.checkpoint.quantize.rounding import restored, round_to_scales, scales_of
    from tunan.checkpoint.quantize.running import run_source
    from tunan.checkpoint.quantize.scheme import QUANTISATIONS
    from tunan.checkpoint.quantize.which_layers import is_quantised
    from tunan.checkpoint.source import open_source

    opened, text, scheme = open_source(source), measured_text(), QUANTISATIONS["w4a8"].weights
    exact, rounded = run_source(opened), run_source(opened)
    for name, parameter in rounded.model.named_parameters():
        if is_quantised(opened.config, name, tuple(parameter.shape)):
            weight = parameter.data
            scales = scales_of(weight, scheme)
            weight.copy_(restored(round_to_scales(weight, scales, scheme), scales))
    return _compared(logprobs(exact, text, tokens), logprobs(rounded, text, tokens))


def _compared(exact: "LogProbs", rounded: "LogProbs") -> dict[str, Any]:
    from tunan.checkpoint.quantize.report import Comparison

    found = Comparison()
    for (_, before), (targets, now) in zip(exact, rounded, strict=True):
        found.add(targets, before, now)
    quality = found.quality(text="").model_dump()
    return {key: quality[key] for key in (*KEPT, "kl_divergence", "greedy_agreement")}


def _rounding_cache() -> Any:
    """A cache that holds keys and values as int8 with a float32 scale a token and head."""
    from transformers import DynamicCache

    class Rounding(DynamicCache):  # type: ignore[misc]
        def update(
            self, keys: "torch.Tensor", values: "torch.Tensor", *_: Any, **__: Any
        ) -> "tuple[torch.Tensor, torch.Tensor]":
            return _rounded(keys), _rounded(values)

    return Rounding()


def _rounded(states: "torch.Tensor") -> "torch.Tensor":
    scale = states.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 127
    return (states / scale).round() * scale


if __name__ == "__main__":
    main()
