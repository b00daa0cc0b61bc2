"""`tunan install`: the steps for a system and a chip, printed, run or written to files."""

import argparse
import subprocess
import tempfile
from pathlib import Path

from tunan.errors import OutsideError, UsageError
from tunan.notices import warn

_DESCRIPTION = """\
Prints the shell script that installs driver, firmware, CANN, the Python packages and Tunan on one
machine, in the right order and with versions that go together; --run runs it, --write DIR writes
it with an environment file, systemd units, a Dockerfile and Kubernetes manifests. What needs an
account at the vendor is fetched by hand: the script says which file, and where it is.
"""
_EXAMPLE = """\
examples:
  tunan install --target ascend910b3
  tunan install --target ascend910b3 --packages /data/packages --run
  tunan install --target ascend910c --os openeuler --offline /data/wheels
  tunan install --target ascend910b3 --config deploy.yaml --write ./files
"""
_SCRIPT_FAILED = 3


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb to the command line."""
    from tunan.cli.main import add_common_options

    parser = subparsers.add_parser(
        "install",
        help="the steps of an installation, and the files beside it",
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--target", required=True, metavar="TARGET", help="cpu, or the chip")
    parser.add_argument("--os", metavar="NAME", help="the system (default: this one's)")
    parser.add_argument("--machine", metavar="ARCH", help="aarch64 or x86_64 (default: this one)")
    parser.add_argument(
        "--upgrade",
        action=argparse.BooleanOptionalAction,
        help="firmware before driver (default: if there is a driver here)",
    )
    parser.add_argument(
        "--packages", type=_path, default=Path(), metavar="DIR", help="the vendor's files (here)"
    )
    parser.add_argument(
        "--offline", type=_path, metavar="DIR", help="Python packages: fill DIR, then use it"
    )
    parser.add_argument(
        "--prefix", type=_path, default=Path("/opt/tunan"), metavar="DIR", help="/opt/tunan"
    )
    parser.add_argument("--config", type=_path, metavar="FILE", help="deployment file, for --write")
    parser.add_argument("--write", type=_path, metavar="DIR", help="write script and files there")
    parser.add_argument("--overwrite", action="store_true", help="replace files that differ")
    parser.add_argument("--run", action="store_true", dest="run_it", help="run the script")
    add_common_options(parser, as_json=False)
    parser.set_defaults(run=run)


def _path(text: str) -> Path:
    """An empty one would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; name a path")
    return Path(text)


def run(args: argparse.Namespace) -> int:
    """Prints the script, or runs or writes it. A step that fails is an `OutsideError`."""
    from tunan.config import load_deployment
    from tunan.install.files import files_of, write_files
    from tunan.install.plan import Plan, machine_of, project_folder, system_of
    from tunan.install.render import script

    _refuse_nonsense(args)
    ascend = Path("/usr/local/Ascend")
    upgrade = args.upgrade
    if upgrade is None:
        upgrade = (ascend / "driver" / "version.info").is_file()
    plan = Plan(
        target=args.target,
        system=args.os or system_of(),
        machine=args.machine or machine_of(),
        upgrade=upgrade,
        prefix=args.prefix.absolute(),
        packages=args.packages.absolute(),
        wheels=args.offline.absolute() if args.offline else None,
        project=project_folder(),
        ascend=ascend,
    )
    if args.write:
        deployment = load_deployment(args.config) if args.config else None
        files = files_of(plan, deployment)
        write_files(args.write, files, args.overwrite)
        print("\n".join(str(args.write / name) for name in files))  # noqa: T201
        return 0
    if args.run_it:
        return _run(script(plan))
    print(script(plan), end="")  # noqa: T201
    return 0


def _refuse_nonsense(args: argparse.Namespace) -> None:
    from tunan.install.facts import packages
    from tunan.install.plan import MACHINES, TARGETS, instead_of

    known = {"--target": TARGETS, "--os": tuple(packages().systems), "--machine": MACHINES}
    if instead := instead_of(args.target):
        raise UsageError(f"--target {args.target}: nothing is installed for it. {instead}")
    given = {"--target": args.target, "--os": args.os, "--machine": args.machine}
    for option, value in given.items():
        if value is not None and value not in known[option]:
            raise UsageError(f"{option} {value}: not one of {', '.join(known[option])}")
    for option, folder in (("--offline", args.offline), ("--write", args.write)):
        if folder and folder.exists() and not folder.is_dir():
            raise UsageError(f"{option} {folder}: not a folder; name one, it may be new")
    if args.run_it and args.write:
        raise UsageError("--run and --write exclude each other")
    for option, value in (("--config", args.config), ("--overwrite", args.overwrite)):
        if value and not args.write:
            raise UsageError(f"{option} is for the files of --write")
    _check_packages(args.packages, args.run_it)


def _check_packages(folder: Path, needed: bool) -> None:
    """It need not be here for a script that is for another machine."""
    if folder.is_dir():
        return
    if folder.exists():
        raise UsageError(f"--packages {folder}: not a folder; name that of the vendor's files")
    if needed:
        raise UsageError(
            f"--packages {folder}: there is no such folder; make it, and put the vendor's files in"
        )
    warn(f"--packages {folder} is not on this machine; it has to be where the script runs")


def _run(text: str) -> int:
    """As a file, not through a pipe: the steps may read standard input themselves."""
    with tempfile.NamedTemporaryFile("w", suffix=".sh", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        status = subprocess.run(["bash", file.name], check=False).returncode
    if status == 0:
        return 0
    if status == _SCRIPT_FAILED:
        raise OutsideError("a step of the installation failed, see the line above")
    raise OutsideError(f"a command of the installation ended with status {status}, see above")
