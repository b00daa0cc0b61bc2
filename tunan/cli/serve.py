"""`tunan serve`: starts the engine for a checkpoint and answers over the OpenAI API."""

import argparse
import os
import signal
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunan.errors import UsageError
from tunan.notices import warn
from tunan.targets import TARGETS

if TYPE_CHECKING:
    from tunan.config import Deployment

EXAMPLE = """examples:
  tunan serve /models/deepseek-7b
  tunan serve --config deploy.yaml --port 9000
  tunan serve /models/deepseek-7b --replicas 1 --standby 1
  tunan serve /models/deepseek-7b -- --max-num-seqs 64     (after --: flags of vLLM)
  tunan serve --config deploy.yaml --target ascend910b3 --print-command
"""


def register(subparsers: Any) -> None:
    """Adds `serve` to the command line."""
    from tunan.cli.main import add_common_options

    parser = subparsers.add_parser(
        "serve",
        help="serve a checkpoint over the OpenAI API",
        description="Starts vLLM for a checkpoint, warms it up and answers over the OpenAI API.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", nargs="?", type=Path, metavar="DIR", help="checkpoint")
    parser.add_argument("--config", type=Path, metavar="FILE", help="deployment file")
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (default 8080; 0: any)")
    parser.add_argument("--target", choices=TARGETS, help="where to run (default: auto)")
    parser.add_argument("--name", help="name of the service, for its logs")
    parser.add_argument("--served-model-name", metavar="NAME", help="name of the model in the API")
    parser.add_argument("--max-model-len", type=int, metavar="TOKENS", help="prompt + answer")
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float16", "float32"))
    parser.add_argument("--tensor-parallel-size", type=int, metavar="N")
    parser.add_argument("--replicas", type=int, metavar="N", help="active engines (default 1)")
    parser.add_argument("--standby", type=int, metavar="N", help="warm standby engines")
    parser.add_argument("--kv-cache-gib", type=float, metavar="GIB", help="size of the KV cache")
    parser.add_argument(
        "--enforce-eager",
        action=argparse.BooleanOptionalAction,
        help="no torch.compile: a faster first start (default: eager on a CPU, graphs on an NPU)",
    )
    parser.add_argument("--warmup-requests", type=int, metavar="N", help="0: no warm-up")
    parser.add_argument(
        "--startup-timeout", type=float, metavar="SECONDS", help="a start may stand still so long"
    )
    parser.add_argument("--shutdown-timeout", type=float, metavar="SECONDS", help="drain at most")
    parser.add_argument("--api-keys-file", type=Path, metavar="FILE", help="one key a line")
    parser.add_argument("--print-command", action="store_true", help="print it, do not start")
    parser.add_argument(
        "--node", type=int, metavar="N", help="print that of one machine; 0: the head"
    )
    parser.add_argument("--verbose", action="store_true", help="show the engine's log on stderr")
    add_common_options(parser)
    parser.set_defaults(run=run, takes_engine_arguments=True)


def run(args: argparse.Namespace) -> int:
    """Serves until SIGTERM or Ctrl-C: 0 after a drain."""
    # Before there is anything to drain it has only to end.
    before = signal.signal(signal.SIGTERM, _end)
    try:
        return _run(args)
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(_number: int, _frame: object) -> None:
    raise SystemExit(0)


def _run(args: argparse.Namespace) -> int:
    from tunan.ascend.emulated import EmulatedDevices
    from tunan.ascend.target import require, resolve_target
    from tunan.config import refuse_unavailable
    from tunan.supervisor.feasibility import refuse_impossible
    from tunan.supervisor.print_command import print_command

    if args.node is not None and not args.print_command:
        raise UsageError("--node goes with --print-command")
    deployment = deployment_of(args)
    refuse_unavailable(deployment)
    emulated = EmulatedDevices.of(os.environ)
    target = resolve_target(deployment.target, emulated)
    here = deployment.replicas.managed
    if here:
        refuse_impossible(deployment, target)
    if args.print_command:
        if not here:
            raise UsageError("replicas: all are elsewhere, so no engine is started from here")
        print_command(deployment, target, as_json=args.json, node=args.node)
        return 0
    if here and target != "cpu":
        require(target, deployment.parallel, emulated, replicas=here)
    # Not before: printing does without the gateway and its client.
    from tunan.supervisor.service import Options, serve

    _refuse_several_machines(deployment)
    warn_if_open(deployment)
    options = Options(target, emulated, verbose=args.verbose, as_json=args.json)
    return serve(deployment, options)


def deployment_of(args: argparse.Namespace) -> "Deployment":
    """The deployment file with the command line's options on top. Raises `UsageError`."""
    from tunan.config import deployment_from, load_deployment
    from tunan.config.loading import without_unset

    options = _options(args)
    if args.config is not None:
        return load_deployment(args.config, options)
    if args.directory is None:
        raise UsageError("name a checkpoint directory, or a deployment file with --config FILE")
    return deployment_from(without_unset(options), origin="command line")


def _options(args: argparse.Namespace) -> dict[str, Any]:
    directory = args.directory
    return {
        "name": args.name,
        "target": args.target,
        "model": {
            "path": str(directory) if directory is not None else None,
            "served_model_name": args.served_model_name,
            "max_model_len": args.max_model_len,
            "dtype": args.dtype,
            "enforce_eager": args.enforce_eager,
        },
        "parallel": {"tensor": args.tensor_parallel_size},
        "replicas": {"count": args.replicas, "standby": args.standby},
        "memory": {"kv_cache_gib": args.kv_cache_gib},
        "warmup": {"requests": args.warmup_requests},
        "gateway": {
            "host": args.host,
            "port": args.port,
            "api_keys_file": str(args.api_keys_file) if args.api_keys_file else None,
            "startup_timeout_s": args.startup_timeout,
            "shutdown_timeout_s": args.shutdown_timeout,
        },
        "engine_arguments": args.engine_arguments or None,
    }


def _refuse_several_machines(deployment: "Deployment") -> None:
    if len(deployment.nodes) > 1:
        raise UsageError(
            "`nodes`: several machines are not started from here in this version; "
            "`tunan serve --print-command` prints the command for each"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def warn_if_open(deployment: "Deployment") -> None:
    """Says what anyone who reaches the port could do."""
    gateway = deployment.gateway
    if gateway.api_keys_file is None and not _is_loopback(gateway.host):
        port = f"port {gateway.port}" if gateway.port else "the port that it takes"
        warn(
            f"listening on {gateway.host} without API keys: ANYONE who reaches {port} "
            "can use the model; set gateway.api_keys_file"
        )
    if deployment.model.trust_remote_code:
        warn("model.trust_remote_code runs the Python code that lies in the checkpoint")
