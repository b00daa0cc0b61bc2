"""`tunan gateway`: the front door alone, before engines that were started elsewhere."""

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunan.errors import UsageError

if TYPE_CHECKING:
    from tunan.config import Deployment

EXAMPLE = """examples:
  tunan gateway --replica http://10.0.0.1:8080 --replica http://10.0.0.2:8080
  tunan gateway --replica http://10.0.0.1:8000 --standby http://10.0.0.2:8000 --port 80
  tunan gateway --config deploy.yaml     (its `replicas` and `gateway`)
"""


def register(subparsers: Any) -> None:
    """Adds `gateway` to the command line."""
    from tunan.cli.main import add_common_options

    parser = subparsers.add_parser(
        "gateway",
        help="stand before engines that were started elsewhere",
        description="Spreads requests over OpenAI servers and goes on with a stream on another "
        "one when its own is lost.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="deployment file")
    parser.add_argument(
        "--replica", action="append", default=[], metavar="URL", help="an engine; repeatable"
    )
    parser.add_argument(
        "--standby", action="append", default=[], metavar="URL", help="one that only stands by"
    )
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (default 8080; 0: any)")
    parser.add_argument("--api-keys-file", type=Path, metavar="FILE", help="one key a line")
    parser.add_argument("--shutdown-timeout", type=float, metavar="SECONDS", help="drain at most")
    parser.add_argument(
        "--resume", action=argparse.BooleanOptionalAction, help="continue streams (default: yes)"
    )
    parser.add_argument(
        "--resume-sampled",
        action=argparse.BooleanOptionalAction,
        help="the replicas run Tunan's sampler: sampled streams too (default: no)",
    )
    parser.add_argument(
        "--etcd",
        action="append",
        metavar="URL",
        help="member of the etcd that elects the holder of a shared address; repeatable",
    )
    parser.add_argument(
        "--etcd-hook",
        metavar="COMMAND",
        help="run with `acquire` or `release` after it to move that address",
    )
    add_common_options(parser, as_json=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serves until SIGTERM or Ctrl-C: 0 after a drain."""
    from tunan.cli.serve import warn_if_open
    from tunan.gateway.standalone import serve_gateway

    deployment = deployment_of(args)
    engines = deployment.replicas.elsewhere
    if not engines:
        raise UsageError("name at least one engine: --replica http://HOST:PORT")
    warn_if_open(deployment)
    return serve_gateway(deployment.gateway, engines)


def deployment_of(args: argparse.Namespace) -> "Deployment":
    """The deployment file with the command line's options on top. Raises `UsageError`."""
    from tunan.config import deployment_from, load_deployment
    from tunan.config.loading import without_unset

    options: dict[str, Any] = {
        "gateway": {
            "host": args.host,
            "port": args.port,
            "api_keys_file": str(args.api_keys_file) if args.api_keys_file else None,
            "shutdown_timeout_s": args.shutdown_timeout,
            "resume": args.resume,
            "resume_sampled": args.resume_sampled,
            "etcd": {"endpoints": args.etcd, "hook": _words(args.etcd_hook)},
        }
    }
    engines = [{"url": url} for url in args.replica]
    engines += [{"url": url, "role": "standby"} for url in args.standby]
    if engines:
        options["replicas"] = engines
    if args.config is not None:
        return load_deployment(args.config, options)
    # There is no model here; what it is called is the engines' affair.
    return deployment_from({"model": {"path": "."}, **without_unset(options)}, "command line")


def _words(command: str | None) -> list[str] | None:
    """As a shell would part it; none reads it."""
    try:
        return None if command is None else shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--etcd-hook {command}: {error}") from None
