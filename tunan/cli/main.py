"""`tunan VERB ...`: parses, runs one verb and turns errors into one line and a status."""

import argparse
import contextlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from tunan import __version__
from tunan.confidential import hidden, without_evident_secrets, without_secrets
from tunan.errors import TunanError

VERBS = (
    "install",
    "convert",
    "verify",
    "serve",
    "gateway",
    "status",
    "rollout",
    "diagnose",
    "chat",
    "config",
    "ops",
    "doctor",
    "monitor",
    "top",
    "emulate",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `tunan` with `argv` (default `sys.argv[1:]`) and returns the exit status.

    0 done; 1 what was asked for is not so; 2 wrong use; 3 an outside part is missing
    or broken; 130 interrupted.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    # What follows `--` is the engine's; argparse would mix it with our own positionals.
    cut = given.index("--") if "--" in given else len(given)
    parser = build_parser()
    args, unknown = parser.parse_known_args(given[:cut])
    args.engine_arguments = given[cut + 1 :]
    if unknown:
        args.parser.error(_unexpected(args, unknown))
    if args.engine_arguments and not args.takes_engine_arguments:
        args.parser.error(f"unexpected after `--`: {' '.join(hidden(args.engine_arguments))}")
    _prepare_streams()
    status = _run(args)
    flushed = _flush()
    return status or flushed


def _unexpected(args: argparse.Namespace, words: list[str]) -> str:
    words = hidden(words)
    if args.takes_command and not args.engine_arguments and not words[0].startswith("-"):
        return f"`--` is missing before the command: `{args.parser.prog} -- {' '.join(words)}`"
    return f"unrecognized arguments: {' '.join(words)}"


def _run(args: argparse.Namespace) -> int:
    try:
        return int(args.run(args))
    except TunanError as error:
        return _report(args, str(error), error.exit_status)
    except KeyboardInterrupt:
        return _report(args, "interrupted", 130)
    except BrokenPipeError:  # whoever read the output has gone
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _report(args, f"{where}{error.strerror or error}", 3)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line; verbs import nothing heavy until they run."""
    parser = _OneLineParser(
        prog="tunan",
        description="Deploy, serve and operate DeepSeek models on Kunpeng and Ascend servers.",
    )
    parser.add_argument("--version", action="version", version=f"tunan {__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for verb in VERBS:
        import_module(f"tunan.cli.{verb}").register(verbs)
    return parser


class _OneLineParser(argparse.ArgumentParser):
    """A wrong command line is one line, as every other error."""

    def error(self, message: str) -> NoReturn:
        message = without_secrets(message)
        self.exit(2, f"{_one_line(f'{self.prog}: {message}; see {self.prog} --help')}\n")


def add_common_options(parser: argparse.ArgumentParser, *, as_json: bool = True) -> None:
    """The options every verb has; `as_json`: it has a result to print."""
    if as_json:
        parser.add_argument(
            "--json", action="store_true", help="print the result as JSON on stdout"
        )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    # A verb that has something after `--` says so itself.
    parser.set_defaults(parser=parser, takes_engine_arguments=False, takes_command=False)


def _prepare_streams() -> None:
    """A name that the terminal's encoding does not have is spelled out, not a crash."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stderr is None:  # closed by the caller; messages must not end up on stdout
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115


def _flush() -> int:
    """The exit status of writing all output: 0, or 1 (nobody reads it) or 3 (there is no room).

    What cannot be written is dropped; the interpreter would fail over it once more at its exit.
    """
    try:
        if sys.stdout:
            sys.stdout.flush()
        return 0
    except OSError as error:
        gone = isinstance(error, BrokenPipeError)
        if not gone:
            print(f"tunan: standard output: {error.strerror}", file=sys.stderr)  # noqa: T201
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
        return 1 if gone else 3


def _report(args: argparse.Namespace, message: str, status: int) -> int:
    if args.debug:
        traceback.print_exc()
    with contextlib.suppress(BrokenPipeError):
        message = without_evident_secrets(message)
        print(f"tunan: {_one_line(message)}", file=sys.stderr)  # noqa: T201
    return status


def _one_line(message: str) -> str:
    words = " ".join(message.split())
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in words)
