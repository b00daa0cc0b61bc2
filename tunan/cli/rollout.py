"""`tunan rollout`: restarts a service's replicas one after the other, with no request lost."""

import argparse
import json
import sys
from typing import Any

from tunan.errors import UsageError

EXAMPLE = """examples:
  tunan rollout                (the only service that runs)
  tunan rollout r1-7b-9000     (a name, a port, or both)
"""


def register(subparsers: Any) -> None:
    """Adds `rollout` to the command line."""
    from tunan.cli.main import add_common_options

    parser = subparsers.add_parser(
        "rollout",
        help="restart the replicas of a running service one by one",
        description="Drains and restarts each replica while the others answer.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("service", nargs="?", metavar="SERVICE", help="name, PORT or NAME-PORT")
    add_common_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Returns 0 once every replica is ready again; what happens is told on the way."""
    from tunan.supervisor.control_client import ask, find_services

    services = find_services(args.service)
    if len(services) > 1:
        names = ", ".join(sorted(max(service.names, key=len) for service in services))
        raise UsageError(f"several services run here; name one: {names}")
    for answer in ask(services[0].socket, "rollout"):
        if not args.json:
            print(answer["progress"], file=sys.stderr, flush=True)  # noqa: T201
    if args.json:
        (answer,) = ask(services[0].socket, "status")
        print(json.dumps(answer["service"], ensure_ascii=False, indent=2))  # noqa: T201
    return 0
