"""The options of `tunan convert` about integers, and what it says of their cost."""

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tunan.cli.counts import positive

if TYPE_CHECKING:
    from tunan.checkpoint.convert import ConvertOptions
    from tunan.checkpoint.manifest import Manifest, Quality, Quantization
    from tunan.checkpoint.quantize.kv_cache import Calibration
    from tunan.checkpoint.quantize.scheme import Quantisation, WeightScheme
    from tunan.checkpoint.source import Source

QUANTISATIONS = ("w8a8", "w4a8")
GROUP_SIZES = (32, 64, 128)
CLIPPING = ("search", "none")
METHODS = ("fitted", "nearest")
SHOWN_WORST = 3


def add_quantisation_options(parser: argparse.ArgumentParser) -> None:
    """Adds them to the verb."""
    parser.add_argument(
        "--quantize",
        choices=QUANTISATIONS,
        metavar="SCHEME",
        help="w8a8 or w4a8; default: no quantising",
    )
    parser.add_argument(
        "--group-size",
        type=int,
        choices=GROUP_SIZES,
        help="inputs that share a scale in w4a8; default: 32",
    )
    parser.add_argument(
        "--clipping",
        choices=CLIPPING,
        help="search (default): the scale of least squared error; none: of the largest value",
    )
    parser.add_argument(
        "--method",
        choices=METHODS,
        help="nearest (default): round to nearest; fitted: run the model on a text, smooth "
        "activations, round by GPTQ; Llama's and Qwen2's kind only",
    )
    parser.add_argument(
        "--rotate",
        action="store_true",
        help="with --method fitted: turn the model first, which spreads outliers; embedding and "
        "head are two tensors afterwards",
    )
    parser.add_argument(
        "--average-bits",
        type=float,
        metavar="N",
        help="with w4a8 and --method fitted: hold the layers that matter most in int8, as many as "
        "N bits a weight allow, scales included (int4 alone: 4.5 in groups of 32)",
    )
    parser.add_argument(
        "--kv",
        choices=("int8",),
        help="int8 key/value cache of Ascend (C8); runs the model here to find its scales",
    )
    parser.add_argument(
        "--calibrate",
        type=Path,
        metavar="FILE",
        help="text for --kv and --method fitted; default: one that is shipped",
    )
    parser.add_argument(
        "--report",
        action=argparse.BooleanOptionalAction,
        help="run the model before and after quantising; default: up to 2 billion weights",
    )
    parser.add_argument(
        "--report-tokens",
        type=positive,
        metavar="N",
        help="tokens of the shipped text that the report is made on; default: 2048",
    )


def quantisation_of(args: argparse.Namespace) -> "Quantisation | None":
    """What is asked of weights; raises UsageError for options that do not go together."""
    from tunan.checkpoint.quantize.scheme import QUANTISATIONS as KNOWN
    from tunan.errors import UsageError

    _check_report(args)
    if args.rotate and args.method != "fitted":
        raise UsageError("--rotate is for fitted weights; give --method fitted too")
    if args.quantize is None:
        given_flags = (
            ("--clipping", args.clipping),
            ("--group-size", args.group_size),
            ("--method", args.method),
            ("--average-bits", args.average_bits),
        )
        for flag, given in given_flags:
            if given is not None:
                raise UsageError(f"{flag} is for quantised weights; give --quantize too")
        return None
    chosen = KNOWN[args.quantize]
    weights = dataclasses.replace(chosen.weights, clipping=args.clipping != "none")
    if args.group_size is not None:
        if weights.group is None:
            raise UsageError(
                f"--group-size: {chosen.name} has a scale an output channel, no groups"
            )
        weights = dataclasses.replace(weights, group=args.group_size)
    if weights.group and args.target.startswith("ascend"):
        raise UsageError(
            f"--quantize {chosen.name}: vllm-ascend reads no int4 linear layer in this format; "
            "for Ascend use w8a8"
        )
    if args.target == "ascend310p":
        raise UsageError(
            f"--quantize {chosen.name}: vllm-ascend reads no compressed-tensors on the 310P; "
            "leave --quantize out"
        )
    if args.average_bits is not None:
        _check_bits(args, weights)
    return dataclasses.replace(chosen, weights=weights, average_bits=args.average_bits)


def _check_report(args: argparse.Namespace) -> None:
    from tunan.errors import UsageError

    if args.report is False and args.report_tokens is not None:
        raise UsageError("--report-tokens: --no-report makes no report; leave one of the two out")
    if args.quantize is not None or args.kv is not None:
        return
    for flag, given in (("--report", args.report), ("--report-tokens", args.report_tokens)):
        if given:
            raise UsageError(
                f"{flag} is for what quantising costs; give --quantize or --kv int8 too"
            )


def _check_bits(args: argparse.Namespace, weights: "WeightScheme") -> None:
    from tunan.errors import UsageError

    if weights.group is None:
        raise UsageError(
            f"--average-bits: {args.quantize} is int8 throughout; give --quantize w4a8 to mix in"
        )
    if args.method != "fitted":
        raise UsageError(
            "--average-bits: what each layer matters shows when the model runs; "
            "give --method fitted too"
        )
    least = weights.stored_bits(weights.group)
    if not least < args.average_bits < 8:
        raise UsageError(
            f"--average-bits {args.average_bits:g}: int4 in groups of {weights.group} takes "
            f"{least:g} with its scales, int8 takes 8; give a number between"
        )


def calibration_of(args: argparse.Namespace) -> "Calibration | None":
    """What an int8 cache is found with; raises UsageError as `quantisation_of`."""
    from tunan.checkpoint.quantize.kv_cache import Calibration
    from tunan.errors import UsageError

    if args.calibrate is not None:
        if args.kv is None and args.method != "fitted":
            raise UsageError(
                "--calibrate is for an int8 cache and fitted weights; give --kv int8 or "
                "--method fitted too"
            )
        _check_text(args.calibrate)
    return None if args.kv is None else Calibration(args.calibrate)


def _check_text(path: Path) -> None:
    """Before the model runs; raises UsageError for what is no file, and what `start_of` raises."""
    from tunan.checkpoint.quantize.calibration_text import start_of
    from tunan.errors import UsageError

    if not path.exists():
        raise UsageError(f"--calibrate: {path}: no such file to calibrate with")
    if not path.is_file():
        what = "a directory" if path.is_dir() else "no regular file"
        raise UsageError(f"--calibrate: {path}: is {what}; give a text file")
    start_of(path)


def fit_weights(
    args: argparse.Namespace, source: "Source", options: "ConvertOptions"
) -> "tuple[Source, ConvertOptions]":
    """With `--method fitted`, `source` after the model has run to smooth and round its weights.

    Raises UsageError for an architecture that cannot be fitted, and what `fit` raises.
    """
    from tunan.checkpoint.quantize.fitting import can_fit, fit
    from tunan.checkpoint.quantize.kv_cache import Calibration
    from tunan.checkpoint.quantize.running import bytes_needed
    from tunan.errors import UsageError

    chosen = options.quantisation
    if chosen is None or args.method != "fitted":
        return source, options
    if not can_fit(source.config):
        raise UsageError(
            "--method fitted is for Llama's and Qwen2's kind, without experts or latent attention; "
            "use --method nearest"
        )
    text = Calibration(args.calibrate)
    _say(
        f"tunan: running the model on {text.name} to smooth and round its weights; this takes "
        f"{bytes_needed(source.tensors) / 1e9:.1f} GB of memory"
    )
    found = fit(source, chosen.weights, text, rotate=args.rotate, average_bits=chosen.average_bits)
    quantisation = dataclasses.replace(
        chosen, fitted_on=text.name, rotated=args.rotate, finer=found.fitted.finer
    )
    return found, dataclasses.replace(
        options, quantisation=quantisation, integers=found.fitted.integers
    )


def told_of(manifest: "Manifest") -> Iterator[str]:
    """Lines on what was quantised and what that cost; none if nothing was."""
    if manifest.quantization:
        yield from _weights(manifest.quantization)
    if manifest.quality:
        yield _quality(manifest.quality)


def _weights(quantization: "Quantization") -> Iterator[str]:
    from tunan.cli.table import render

    yield (
        f"{quantization.scheme}: {quantization.quantised_weights} weights, {quantization.weights}; "
        f"mean relative error {quantization.mean_relative_error:.4f}"
    )
    rows = [(worst.weight, f"{worst.relative_error:.4f}") for worst in quantization.worst_weights]
    yield render(("worst weight", "relative error"), rows[:SHOWN_WORST])


def _quality(quality: "Quality") -> str:
    error = quality.standard_error
    give = "" if error is None else f" \u00b1 {error:.2%}"
    return (
        f"on {quality.tokens} tokens of {quality.text}: perplexity {quality.perplexity:.3f}, "
        f"{quality.perplexity_before:.3f} before ({quality.perplexity_increase:+.2%}{give}); "
        f"KL divergence {quality.kl_divergence:.4f}; "
        f"same likeliest token {quality.greedy_agreement:.1%}"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201
