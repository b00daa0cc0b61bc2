"""`tunan emulate -- COMMAND`: runs a command on emulated Ascend devices."""

import argparse
import errno
import os
import shutil
from pathlib import Path
from typing import Any

from tunan.errors import OutsideError, UsageError

_EXAMPLE = """\
examples:
  tunan emulate -- python -c "import torch, torch_npu; print(torch.ones(3).npu() + 1)"
  tunan emulate -- tunan serve DIR --kv-cache-gib 0.5
  tunan emulate --faults ecc:after=8000 -- tunan serve DIR --kv-cache-gib 0.5     (dies serving)
"""


def register(subparsers: Any) -> None:
    """Adds the verb to the command line."""
    from tunan.cli.main import add_common_options

    parser = subparsers.add_parser(
        "emulate",
        help="run a command with the real torch_npu and vllm-ascend on emulated Ascend devices",
        description="Runs a command on emulated Ascend devices, whose memory is the host's. It "
        "shows what runs and that results are right; nothing about speed.",
        usage="tunan emulate [options] -- COMMAND",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--devices", type=int, default=1, metavar="N", help="how many (default 1)")
    parser.add_argument("--soc", default="910b3", help="which chip (default 910b3)")
    parser.add_argument("--memory", default="4G", help="memory of each device (default 4G)")
    parser.add_argument(
        "--faults",
        default=os.environ.get("TUNAN_EMULATE_FAULTS", ""),
        help="faults to have, as in TUNAN_EMULATE_FAULTS; see docs/en/emulator.md",
    )
    parser.add_argument(
        "--trace", type=Path, help="file that gets a line for every operator that runs"
    )
    parser.add_argument(
        "--state",
        type=Path,
        metavar="DIR",
        help="commands with the same folder share the devices and their memory",
    )
    add_common_options(parser, as_json=False)
    # The command line keeps what follows `--` apart for us as it does for the engine.
    parser.set_defaults(run=run, takes_engine_arguments=True, takes_command=True)


def run(args: argparse.Namespace) -> int:
    """Replaces this process by the command; returns only by an error."""
    command: list[str] = args.engine_arguments
    if not command:
        raise UsageError("name a command to run after --; see tunan emulate --help")
    try:
        from tunan_emulator import EmulatedMachine, SettingsError
    except ModuleNotFoundError:
        raise OutsideError(
            "the emulator is not installed in this environment; `make setup-ascend` makes one that "
            "has it (.venv-ascend)"
        ) from None
    program = _program(command[0])
    # The emulator is a wheel of its own: one that is older, and cannot share, runs the rest.
    shared = {"state": args.state} if args.state else {}
    machine = EmulatedMachine(
        devices=args.devices,
        soc=args.soc.lower(),
        memory=args.memory,
        faults=args.faults,
        trace=args.trace,
        **shared,
    )
    try:
        environment = machine.environment(os.environ)
    except SettingsError as error:
        raise UsageError(str(error)) from None
    try:
        os.execve(program, command, environment)  # noqa: S606
    except OSError as error:
        raise UsageError(_why_not(program, error)) from None


def _program(name: str) -> str:
    if found := shutil.which(name):
        return found
    path = Path(name)
    if "/" in name and path.is_dir():
        raise UsageError(f"{name}: is a directory; name a program after --")
    if "/" in name and path.is_file():
        raise UsageError(
            f"{name}: is not executable; `chmod +x` it, or write its interpreter before it"
        )
    raise UsageError(f"no command {name!r}; check the spelling and PATH")


def _why_not(program: str, error: OSError) -> str:
    if error.errno == errno.ENOEXEC:
        return (
            f"{program}: no program for this machine, and no script with a `#!` line; write its "
            f"interpreter before it: -- sh {program}"
        )
    if error.errno == errno.ENOENT:
        return f"{program}: the interpreter that it names is not on this machine; install it"
    return f"{program}: {error.strerror}; name a program that can be run here"
