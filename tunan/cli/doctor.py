"""`tunan doctor`: what this machine lacks for a deployment, and the commands that mend it."""

import argparse
import json
from pathlib import Path

from tunan.targets import TARGETS

_DESCRIPTION = """\
Looks at the machine (processor, memory, disks, system, driver, CANN, packages, NPUs) and, with
--config, at the deployment: does the model fit, are there enough devices, is the port free. Says of
each what was found, what is needed and the command that mends it. Changes nothing and needs
neither an NPU nor the engine. Exit status 1 if something stands in the way of the service.
"""
_EXAMPLE = """\
examples:
  tunan doctor
  tunan doctor --target ascend910b3 --profile recommended
  tunan doctor --config deploy.yaml --bundle machine.tar.gz
  tunan doctor --from machine.tar.gz
"""


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb to the command line."""
    from tunan.cli.main import add_common_options

    parser = subparsers.add_parser(
        "doctor",
        help="what this machine lacks for a deployment",
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--target", choices=TARGETS, help="what it is to run on (default: look)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="deployment file")
    parser.add_argument(
        "--profile", choices=("minimum", "recommended"), help="a machine to compare with"
    )
    parser.add_argument(
        "--bundle", type=Path, metavar="FILE", help="write facts and logs, masked, to a .tar.gz"
    )
    parser.add_argument(
        "--from", type=Path, metavar="FILE", dest="bundle_from", help="check a bundle's machine"
    )
    add_common_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the findings; 1 if one of them stands in the way."""
    from tunan.ascend.probes.sight import this_machine
    from tunan.config import load_deployment
    from tunan.doctor.bundle import read_bundle, write_bundle
    from tunan.doctor.examining import examine
    from tunan.doctor.subject import Asked, Subject, this_machine_with_checkpoints
    from tunan.errors import UsageError
    from tunan.supervisor.directories import Directories

    if args.bundle and args.bundle_from:
        raise UsageError("--bundle and --from exclude each other; a bundle is one already")
    if args.bundle_from:
        sight, recorded = read_bundle(args.bundle_from)
    else:
        sight, recorded = this_machine_with_checkpoints(this_machine()), Asked()
    deployment = load_deployment(args.config) if args.config else recorded.deployment
    asked = Asked(
        target=args.target or recorded.target,
        deployment=deployment,
        profile=args.profile or recorded.profile,
    )
    subject = Subject(sight, asked)
    examination = examine(subject)
    if args.bundle:
        write_bundle(args.bundle, subject, examination, Directories.of_user().state)
    text = json.dumps(examination.as_json()) if args.json else examination.text()
    print(text)  # noqa: T201
    return 0 if examination.passed else 1
