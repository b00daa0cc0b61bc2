"""`tunan ops audit`: what becomes of every operator of a model on an Ascend target."""

import argparse
import json
from pathlib import Path

DTYPES = ("auto", "bfloat16", "float16", "float32")

_AUDIT = """\
Traces a model from its configuration alone (no weights, no device) through one prefill and
one decode step and says of every operator how it runs on the target: in a fused kernel, in a
kernel of its own, on the CPU with what the copies cost, or not at all, and what to use instead.

What is traced is transformers' modelling code; vLLM on Ascend runs the fused kernels of the
last column. Quantised layers (W8A8, FP8) are judged as such.
MODEL is a checkpoint directory (also a converted one) or a config.json.
"""
_EXAMPLE = """\
examples:
  tunan ops audit ./DeepSeek-V3/config.json --target ascend910c
  tunan ops audit ./model --target ascend310p --replace
"""


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb to the command line."""
    parser = subparsers.add_parser("ops", help="audit a model's operators for Ascend")
    verbs = parser.add_subparsers(metavar="WHAT", required=True)
    _register_audit(verbs)


def _register_audit(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    from tunan.cli.main import add_common_options

    parser = verbs.add_parser(
        "audit",
        help="what becomes of every operator on a target",
        description=_AUDIT,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument(
        "--target",
        default="ascend910b",
        help="ascend910b (default), ascend910c, ascend310p, ascend910a, or a chip: ascend910b3",
    )
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default="auto",
        help="auto (default): bfloat16, or float16 on a chip without bfloat16",
    )
    parser.add_argument("--batch", type=_positive, default=1, metavar="N", help="default: 1")
    parser.add_argument(
        "--prompt-tokens", type=_positive, default=128, metavar="N", help="default: 128"
    )
    parser.add_argument(
        "--torch-npu", metavar="VERSION", help="whose list of kernels; default: 2.10.0.post4"
    )
    parser.add_argument(
        "--link-gbps", type=_rate, metavar="GBPS", help="measured host-device rate, one way"
    )
    parser.add_argument(
        "--replace", action="store_true", help="audit after tunan.ops.replace(model, 'npu')"
    )
    add_common_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the audit; 1 if an operator cannot run and nothing replaces it."""
    from tunan.ops.audit_text import as_json, text
    from tunan.ops.auditing import AuditOptions, audit_config
    from tunan.ops.meta_model import read_config
    from tunan.ops.quantised import read_description
    from tunan.ops.registrations import DEFAULT_VERSION

    options = AuditOptions(
        target=args.target,
        dtype=args.dtype,
        batch=args.batch,
        prompt_tokens=args.prompt_tokens,
        torch_npu=args.torch_npu or DEFAULT_VERSION,
        link_gbps=args.link_gbps,
        replace=args.replace,
    )
    audit = audit_config(read_config(args.model), options, read_description(args.model))
    print(json.dumps(as_json(audit)) if args.json else text(audit))  # noqa: T201
    return 1 if audit.blocking else 0


def _rate(value: str) -> float:
    rate = float(value)
    if not 0 < rate < float("inf"):
        raise argparse.ArgumentTypeError("must be more than 0")
    return rate


def _positive(value: str) -> int:
    number = int(value)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number
