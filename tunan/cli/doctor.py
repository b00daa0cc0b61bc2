"""`tunan doctor`: what this machine lacks for a deployment, and the commands that mend it."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tunan.targets import TARGETS

if TYPE_CHECKING:
    from tunan.doctor.examining import Examination
    from tunan.doctor.fleet.report import Report
    from tunan.doctor.subject import Asked

_DESCRIPTION = """\
Looks at the machine (processor, memory, disks, system, driver, CANN, packages, NPUs) and, with
--config, at the deployment: does the model fit, are there enough devices, is the port free. Says of
each what was found, what is needed and the command that mends it. Changes nothing and needs
neither an NPU nor the engine. With --nodes it looks at other machines over ssh, without passwords
and with nothing but python3 needed there, and compares them: versions, clocks, names, ports, the
NPUs' network. Several --from compare bundles. Exit status 1 if something stands in the way.
"""
_EXAMPLE = """\
examples:
  tunan doctor
  tunan doctor --target ascend910b3 --profile recommended
  tunan doctor --config deploy.yaml --bundle machine.tar.gz
  tunan doctor --from machine.tar.gz
  tunan doctor --nodes node1,admin@node2 --target ascend910b3
  tunan doctor --nodes node1,node2 --bundle machines
  tunan doctor --from node1.tar.gz --from node2.tar.gz
"""
_NODES = "look at these machines over ssh (host1,user@host2); alone: `nodes` of --config"


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
    parser.add_argument("--nodes", nargs="?", const="", metavar="HOSTS", help=_NODES)
    parser.add_argument(
        "--prefix", default="/opt/tunan", metavar="DIR", help="where Tunan is on them (/opt/tunan)"
    )
    parser.add_argument(
        "--bundle",
        type=Path,
        metavar="FILE",
        help="write facts and logs, masked, to a .tar.gz; with --nodes: the folder for one of each",
    )
    parser.add_argument(
        "--from",
        type=Path,
        action="append",
        metavar="FILE",
        dest="bundles",
        help="check a bundle's machine; given several times: compare them",
    )
    add_common_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the findings; 1 if one of them stands in the way."""
    _refuse_nonsense(args)
    report = _looked(args)
    text = json.dumps(report.as_json()) if args.json else report.text()
    print(text)  # noqa: T201
    return 0 if report.passed else 1


def _looked(args: argparse.Namespace) -> "Examination | Report":
    if args.nodes is not None:
        return _over_ssh(args)
    return _of_bundles(args) if len(args.bundles or ()) > 1 else _of_one(args)


def _refuse_nonsense(args: argparse.Namespace) -> None:
    from tunan.errors import UsageError

    if args.bundle and args.bundles:
        raise UsageError("--bundle and --from exclude each other; a bundle is one already")
    bundles = args.bundles or []
    if len({path.absolute() for path in bundles}) < len(bundles):
        raise UsageError("--from names a bundle twice; name that of each machine once")
    if args.nodes is not None and args.bundles:
        raise UsageError("--nodes looks at machines, --from at bundles of some; give one of them")


def _of_one(args: argparse.Namespace) -> "Examination":
    from tunan.ascend.probes.sight import this_machine
    from tunan.doctor.bundle import read_bundle, refuse_existing, write_bundle
    from tunan.doctor.examining import examine
    from tunan.doctor.subject import Asked, Subject, this_machine_with_checkpoints
    from tunan.supervisor.directories import Directories

    if args.bundles:
        sight, recorded = read_bundle(args.bundles[0])
    else:
        sight, recorded = this_machine_with_checkpoints(this_machine()), Asked()
    subject = Subject(sight, _asked(args, recorded))
    if args.bundle:
        refuse_existing(args.bundle)
        # What is compared with other machines later is asked for now.
        examine(Subject(sight, replace(subject.asked, machines=2)))
    examination = examine(subject)
    if args.bundle:
        write_bundle(args.bundle, subject, examination, Directories.of_user().state)
    return examination


def _of_bundles(args: argparse.Namespace) -> "Report":
    from tunan.doctor.bundle import read_bundle
    from tunan.doctor.examining import examine
    from tunan.doctor.fleet.machine import Machine
    from tunan.doctor.fleet.report import reported
    from tunan.doctor.fleet.visit import Visited
    from tunan.doctor.subject import Subject

    visits = []
    for path in args.bundles:
        sight, recorded = read_bundle(path)
        asked = replace(_asked(args, recorded), machines=len(args.bundles))
        machine = Machine(str(path), Subject(sight, asked), live=False)
        visits.append(Visited(machine.name, machine, examine(machine.subject)))
    return reported(visits)


def _over_ssh(args: argparse.Namespace) -> "Report":
    from tunan.doctor.fleet.bundles import prepare, write_bundles
    from tunan.doctor.fleet.hosts import checked, parse_hosts
    from tunan.doctor.fleet.report import reported
    from tunan.doctor.fleet.visit import visited
    from tunan.doctor.subject import Asked
    from tunan.errors import UsageError

    asked = _asked(args, Asked())
    if args.nodes:
        hosts = parse_hosts(args.nodes)
    elif asked.deployment and asked.deployment.nodes:
        hosts = checked(asked.deployment.nodes, f"{args.config}: nodes")
    else:
        raise UsageError("--nodes: give host1,host2, or a --config whose `nodes` are meant")
    if args.bundle:
        prepare(args.bundle)
    with visited(hosts, replace(asked, machines=len(hosts)), args.prefix) as visits:
        report = reported(visits)
        if args.bundle:
            write_bundles(args.bundle, visits)
        return report


def _asked(args: argparse.Namespace, recorded: "Asked") -> "Asked":
    from tunan.config import load_deployment

    return replace(
        recorded,
        target=args.target or recorded.target,
        deployment=load_deployment(args.config) if args.config else recorded.deployment,
        profile=args.profile or recorded.profile,
    )
