"""`tunan diagnose`: what logs say went wrong, and what to do about it."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tunan.errors import UsageError

if TYPE_CHECKING:
    from tunan.diagnosis import Diagnosis

_DESCRIPTION = """\
Reads logs of vLLM, vllm-ascend, torch_npu, CANN and this program, finds the cause among all that
repeats it, and says what to set to which value. Several logs are those of one run on several
machines. Without LOG: the log that a `tunan serve` of this user wrote last, or, where that has no
error, the one before; -: standard input.
Exit status: 0 the cause is known, 1 it is not, or there is no error in the logs.
"""
_EXAMPLE = """\
examples:
  tunan diagnose
  tunan diagnose node0.log node1.log --lang zh
  kubectl logs deepseek-0 | tunan diagnose - --json
"""


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb to the command line."""
    from tunan.cli.main import add_common_options

    parser = subparsers.add_parser(
        "diagnose",
        help="find out from logs what went wrong",
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("logs", nargs="*", metavar="LOG", help="-: standard input")
    parser.add_argument("--lang", choices=("en", "zh"), default="en", help="default: en")
    add_common_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the diagnosis; 0 if the cause is known."""
    from tunan.diagnosis.text import as_json, text

    found = _diagnosed(args.logs) if args.logs else _diagnosed_last()
    if args.json:
        print(json.dumps(as_json(found, args.lang)))  # noqa: T201
    else:
        print(text(found, args.lang))  # noqa: T201
    return 0 if found.verdict == "known" else 1


def _diagnosed(names: list[str]) -> "Diagnosis":
    from tunan.diagnosis import diagnose, diagnose_streams

    if names == ["-"]:
        if sys.stdin is None:
            raise UsageError("standard input is closed: name the LOG to read")
        return diagnose_streams([("-", sys.stdin.buffer)])
    if "-" in names:
        raise UsageError("- stands for standard input and takes no other LOG beside it")
    logs = [Path(name) for name in names]
    for log in logs:
        if log.is_dir():
            raise UsageError(f"{log}: is a directory; give the logs in it")
        if not log.exists():
            raise UsageError(f"{log}: there is no such log")
        if log.is_char_device() or log.is_block_device():
            raise UsageError(f"{log}: is a device; give the log's file, or - for standard input")
    return diagnose(logs)


def _diagnosed_last() -> "Diagnosis":
    """The last log. Where it has no error those beside it: another replica's, and those of the
    runs before, as an engine that was started again begins a new log."""
    last = _last_log()
    clean = _diagnosed([str(last)])
    if clean.verdict != "clean":
        return clean
    for log in _latest_first(last.parent, "engine*.log", "engine*.log.1"):
        if log != last and (found := _diagnosed([str(log)])).verdict != "clean":
            return found
    return clean


def _last_log() -> Path:
    from tunan.supervisor.directories import Directories

    state = Directories.of_user().state
    logs = _latest_first(state, "*/engine*.log")
    if not logs:
        raise UsageError(f"no engine's log is in {state}: name the LOG to read")
    return logs[0]


def _latest_first(folder: Path, *patterns: str) -> list[Path]:
    logs = [log for pattern in patterns for log in folder.glob(pattern)]
    return sorted(logs, key=lambda log: log.stat().st_mtime, reverse=True)
