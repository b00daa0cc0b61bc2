"""`tunan convert`: a checkpoint of any known kind to the blocks Tunan serves from."""

import argparse
import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunan.cli.counts import positive, worker_count
from tunan.cli.quantisation import (
    add_quantisation_options,
    calibration_of,
    fit_weights,
    quantisation_of,
    told_of,
)

if TYPE_CHECKING:
    from tunan.checkpoint.convert import ConversionPlan, ConvertOptions, Outcome
    from tunan.checkpoint.destination import Destination
    from tunan.checkpoint.source import Source
    from tunan.cli.progress import Progress

DTYPES = ("bfloat16", "float16", "float32")

_DESCRIPTION = """\
Converts a checkpoint to blocks of at most 256 MiB, cut at layer boundaries, in standard
safetensors with an index, so that transformers and plain vLLM read the result too.

SOURCE is a Hugging Face directory (safetensors or pytorch_model.bin), a GGUF file or a
plain state dict (.pt). DeepSeek's block-wise FP8 is converted to --dtype.

--quantize w8a8 holds the weights of attention, MLPs and experts as int8, one scale an output
channel, in the format compressed-tensors, which vLLM and vllm-ascend read; w4a8 (CPU only) as int4
with a scale for each 32 inputs. Activations are int8, scaled while the model runs.
"""
_EXAMPLE = """\
examples:
  tunan convert ./DeepSeek-R1 ./r1 --target ascend910b --tensor-parallel-size 16
  tunan convert SmolLM2-135M-Instruct.Q8_0.gguf ./smollm2
  tunan convert ./DeepSeek-R1-Distill-Qwen-7B ./r1-7b-w8a8 --quantize w8a8
"""


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb to the command line."""
    from tunan.cli.main import add_common_options

    parser = subparsers.add_parser(
        "convert",
        help="convert a checkpoint for lazy loading",
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", type=Path, metavar="SOURCE")
    parser.add_argument("destination", type=Path, metavar="DEST", help="directory to make")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="default: bfloat16")
    add_quantisation_options(parser)
    parser.add_argument(
        "--target", default="cpu", help="cpu (default), ascend910b, ascend910c, ascend310p"
    )
    parser.add_argument(
        "--tensor-parallel-size",
        "--tensor-parallel",
        type=positive,
        metavar="N",
        help="also write blocks that are already fused and cut for each of N ranks",
    )
    parser.add_argument("--max-batch-size", type=positive, metavar="N", help="default: 32")
    parser.add_argument("--name", help="model name in the manifest; default: DEST's own name")
    parser.add_argument(
        "--block-size", type=positive, metavar="MIB", help="largest block, MiB; default: 256"
    )
    parser.add_argument(
        "--workers", type=worker_count, metavar="N", help="default: two a core, at most 8"
    )
    parser.add_argument(
        "--config", type=Path, metavar="PATH", help="config.json of a plain state dict"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a converted checkpoint")
    parser.add_argument("--dry-run", action="store_true", help="print the plan, write nothing")
    add_common_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Converts, or with --dry-run says what would be done."""
    # Host work: torch must not look for the device of an Ascend environment when imported.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    from tunan.checkpoint.convert import (
        convert,
        makes_report,
        plan_conversion,
        space_for,
        unfinished,
    )
    from tunan.checkpoint.destination import Destination
    from tunan.ops.map import refused_activation

    options = _options(args)
    destination = Destination(Path(args.destination))
    destination.check(args.source, overwrite=options.overwrite)
    source, options = _open(args, options)
    plan = plan_conversion(source, options)
    _warn(plan, refused_activation(source.config))
    if args.dry_run:
        _print_plan(args, source, plan, destination, options)
        destination.check_space(space_for(unfinished(source, destination, plan)))
        return 0
    if args.report_tokens:
        _tell_of_report(args.report_tokens, made=makes_report(source, options))
    progress = _ConvertProgress(destination)
    begin = time.monotonic()
    try:
        outcome = convert(source, destination, plan, options, progress)
    except KeyboardInterrupt:
        progress.close()
        _say(
            f"tunan: interrupted; finished blocks are kept in {destination.partial}, "
            "run the same command again to continue"
        )
        return 130
    finally:
        progress.close()
    _print_outcome(args, plan, outcome, destination, time.monotonic() - begin)
    return 0


def _tell_of_report(tokens: int, *, made: bool) -> None:
    if not made:
        _say("tunan: --report-tokens is not used: for this model a report takes --report as well")
        return
    _say(
        f"tunan: after the blocks the model runs twice on up to {tokens} tokens for the report; "
        "thousands take minutes, without progress shown"
    )


def _open(args: argparse.Namespace, options: "ConvertOptions") -> "tuple[Source, ConvertOptions]":
    """The source; with fitted weights or an int8 cache, once the model has run."""
    from tunan.checkpoint.quantize.kv_cache import check_cache_fits, with_cache_scales
    from tunan.checkpoint.quantize.running import bytes_needed
    from tunan.checkpoint.source import open_source

    source, calibration = open_source(args.source, args.config), options.calibration
    if calibration is None:
        return (source, options) if args.dry_run else _fitted(args, source, options)
    check_cache_fits(source.config, options.target, options.tensor_parallel)
    source, options = _fitted(args, source, options)
    _say(
        f"tunan: running the model on {calibration.name} to find the cache's scales; "
        f"this takes {bytes_needed(source.tensors) / 1e9:.1f} GB of memory"
    )
    return with_cache_scales(source, calibration), options


def _fitted(
    args: argparse.Namespace, source: "Source", options: "ConvertOptions"
) -> "tuple[Source, ConvertOptions]":
    """Weights fitted where they are to be, once the plan shows that they can be converted."""
    from tunan.checkpoint.convert import plan_conversion

    if options.quantisation is not None:
        plain = dataclasses.replace(options, calibration=None)
        plan_conversion(source, plain)
    return fit_weights(args, source, options)


def _options(args: argparse.Namespace) -> "ConvertOptions":
    from tunan.checkpoint.convert import ConvertOptions
    from tunan.checkpoint.plan import MIB
    from tunan.checkpoint.precision import PRECISIONS

    given: dict[str, Any] = {
        "precision": PRECISIONS[args.dtype],
        "quantisation": quantisation_of(args),
        "calibration": calibration_of(args),
        "report_tokens": args.report_tokens,
        "target": args.target,
        "tensor_parallel": args.tensor_parallel_size,
        "max_batch_size": args.max_batch_size,
        "name": args.name,
        "block_bytes": args.block_size and args.block_size * MIB,
        "workers": args.workers,
        "overwrite": args.overwrite,
    }
    known = {key: value for key, value in given.items() if value is not None}
    return ConvertOptions(**known, report=args.report)


def _warn(plan: "ConversionPlan", activation: str | None) -> None:
    inventory = plan.inventory
    if activation is not None:
        _say(
            f"tunan: config.json's hidden_act is {activation}: vLLM runs this architecture with "
            "silu only and refuses to load the result"
        )
    if inventory.unexpected:
        count, first = len(inventory.unexpected), inventory.unexpected[0]
        _say(f"tunan: {count} tensors the architecture does not have are carried over: {first} ...")
    if inventory.mtp_absent:
        _say("tunan: the source has no multi-token-prediction layers, though its config names some")
    for mapped in plan.operators:
        if not mapped.runs:
            _say(f"tunan: {mapped.module} does not run on this target: {mapped.note}")


class _ConvertProgress:
    """Says what was found of an earlier run, then shows bytes."""

    def __init__(self, destination: "Destination") -> None:
        self._destination = destination
        self._bytes: Progress | None = None

    def begin(self, total_bytes: int, blocks: int, reused: int, restarted: bool) -> None:
        """Is told once, before the first byte."""
        from tunan.cli.progress import byte_progress

        if reused:
            _say(f"continuing: {reused} of {blocks} blocks were finished by an earlier run")
        if restarted:
            _say(
                f"{self._destination.partial}: left by a conversion of another source or with "
                "other options; starting over"
            )
        self._bytes = byte_progress("convert", total_bytes)

    def advance(self, count: int) -> None:
        """Counts bytes written."""
        if self._bytes:
            self._bytes.advance(count)

    def close(self) -> None:
        """Ends the bar, once."""
        if self._bytes:
            self._bytes.close()
            self._bytes = None


def _print_plan(
    args: argparse.Namespace,
    source: "Source",
    plan: "ConversionPlan",
    destination: "Destination",
    options: "ConvertOptions",
) -> None:
    from tunan.cli.table import render

    free = destination.free_space()
    if args.json:
        content = {
            "blocks": [
                {"file": b.file, "bytes": b.bytes, "layers": b.layers, "tensors": len(b.entries)}
                for b in plan.blocks
            ],
            "bytes": plan.bytes,
            "free_bytes": free,
            "operators": [dataclasses.asdict(mapped) for mapped in plan.operators],
        }
        _print(json.dumps(content, indent=1))
        return
    rows = [
        (block.file, f"{block.bytes / (1 << 20):.1f}", len(block.entries), _span(block.layers))
        for block in plan.blocks
    ]
    _print(render(("block", "MiB", "tensors", "layers"), rows))
    _print("")
    _print_operators(plan, options.target)
    _print(
        f"\n{source.path} -> {destination.path}: {len(plan.blocks)} blocks, "
        f"{plan.bytes / 1e9:.2f} GB to write, {free / 1e9:.2f} GB free; nothing was written"
    )


def _print_outcome(
    args: argparse.Namespace,
    plan: "ConversionPlan",
    outcome: "Outcome",
    destination: "Destination",
    seconds: float,
) -> None:
    if args.json:
        content = outcome.manifest.model_dump(mode="json") | {
            "reused_blocks": outcome.reused,
            "written_bytes": outcome.written_bytes,
            "seconds": round(seconds, 3),
        }
        _print(json.dumps(content))
        return
    _print_operators(plan, outcome.manifest.target)
    for kept in outcome.manifest.kept_precision:
        _print(f"kept in {kept.dtype}: {kept.tensors} tensors named *{kept.suffix}")
    for line in told_of(outcome.manifest):
        _print(line)
    _print(
        f"{destination.path}: {len(plan.blocks)} blocks ({outcome.reused} from an earlier run), "
        f"{outcome.written_bytes / 1e9:.2f} GB written in {seconds:.1f} s "
        f"({outcome.written_bytes / max(seconds, 1e-9) / 1e9:.2f} GB/s)"
    )


def _print_operators(plan: "ConversionPlan", target: str) -> None:
    from tunan.cli.table import render

    rows = [
        (m.module, m.count, m.operator or "-", "yes" if m.fused else "no", m.note)
        for m in plan.operators
    ]
    _print(render((f"module on {target}", "count", "operator", "fused", "note"), rows))
    without = [mapped.module for mapped in plan.operators if not mapped.fused]
    _print(f"no fused operator: {', '.join(without) or 'none'}")


def _span(layers: tuple[int, ...]) -> str:
    if not layers:
        return "-"
    return str(layers[0]) if len(layers) == 1 else f"{layers[0]}-{layers[-1]}"


def _print(text: str) -> None:
    print(text)  # noqa: T201


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201
