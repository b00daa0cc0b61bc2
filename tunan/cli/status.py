"""`tunan status`: the services that run here and the state of their replicas."""

import argparse
import json
from collections.abc import Sequence
from typing import Any

EXAMPLE = """examples:
  tunan status
  tunan status --json
  tunan status r1-7b-9000      (a name, a port, or both)
"""
COLUMNS = ("replica", "role", "state", "in flight", "starts", "failures", "MiB", "pid")


def register(subparsers: Any) -> None:
    """Adds `status` to the command line."""
    from tunan.cli.main import add_common_options

    parser = subparsers.add_parser(
        "status",
        help="show the running services and their replicas",
        description="Shows each running `tunan serve` of this user. Status 1: one is not ready.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("service", nargs="?", metavar="SERVICE", help="name, PORT or NAME-PORT")
    add_common_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the state: 0 if every service shown is ready, else 1."""
    from tunan.supervisor.control_client import find_services

    states = [service.state for service in find_services(args.service)]
    if args.json:
        print(json.dumps(states, ensure_ascii=False, indent=2))  # noqa: T201
    else:
        print("\n\n".join(map(shown, states)))  # noqa: T201
    return 0 if all(state["ready"] for state in states) else 1


def shown(state: dict[str, Any]) -> str:
    """A service and its replicas, as lines."""
    from tunan.cli.table import render

    ready = "ready" if state["ready"] else "not ready"
    rollout = ", rollout going on" if state["rollout"] else ""
    head = f"{state['name']}: {state['model']} at {state['address']}, {ready}{rollout}"
    head += _holder(state.get("shared_address"))
    return f"{head}\n{render(COLUMNS, [_row(replica) for replica in state['replicas']])}"


def _holder(shared: dict[str, Any] | None) -> str:
    """A line on the address that several gateways share, if they do."""
    if shared is None:
        return ""
    here = " (this gateway)" if shared["holding"] else ""
    return f"\nshared address: held by {shared['holder'] or 'nobody that is known'}{here}"


def _row(replica: dict[str, Any]) -> Sequence[object]:
    memory = replica.get("memory")
    return (
        replica["name"],
        replica["role"],
        replica["detail"],
        replica["in_flight"],
        replica.get("starts", "-"),
        replica.get("failures", "-"),
        memory >> 20 if memory else "-",
        replica.get("pid") or "-",
    )
