"""`tunan VERB ...`: parses, runs one verb and turns errors into one line and a status."""

import argparse
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

from tunan import __version__
from tunan.errors import TunanError

VERBS = ("convert", "verify", "serve", "chat", "config")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `tunan` with `argv` (default `sys.argv[1:]`) and returns the exit status.

    0 done; 1 what was asked for is not so; 2 wrong use; 3 an outside part is missing
    or broken; 130 interrupted.
    """
    args = build_parser().parse_args(argv)
    try:
        return int(args.run(args))
    except TunanError as error:
        return _report(args, str(error), error.exit_status)
    except KeyboardInterrupt:
        return _report(args, "interrupted", 130)
    except BrokenPipeError:
        sys.stderr.close()
        return 1


def build_parser() -> argparse.ArgumentParser:
    """The whole command line; verbs import nothing heavy until they run."""
    parser = argparse.ArgumentParser(
        prog="tunan",
        description="Deploy, serve and operate DeepSeek models on Kunpeng and Ascend servers.",
    )
    parser.add_argument("--version", action="version", version=f"tunan {__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for verb in VERBS:
        import_module(f"tunan.cli.{verb}").register(verbs)
    return parser


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """The options every verb has."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def _report(args: argparse.Namespace, message: str, status: int) -> int:
    if args.debug:
        traceback.print_exc()
    line = " ".join(message.split())
    print(f"tunan: {line}", file=sys.stderr)  # noqa: T201
    return status
