"""`tunan monitor`: a Prometheus exporter for NPUs and their host."""

import argparse
import signal
import sys
import threading

_DESCRIPTION = """\
Serves http://HOST:PORT/metrics for Prometheus until it is stopped: NPUs under the names of
Ascend's npu-exporter, plus npu_utilization (per cent) and npu_memory_used (MB), and the host's
memory and load.
Needs neither an NPU nor the engine; without an NPU tunan_monitor_npus_readable is 0.
"""
_EXAMPLE = """\
example:
  tunan monitor --port 8000
"""


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb to the command line."""
    from tunan.cli.main import add_common_options

    parser = subparsers.add_parser(
        "monitor",
        help="Prometheus exporter for NPUs",
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=_port, default=8000, help="default: 8000; 0: any")
    parser.add_argument(
        "--interval", type=_seconds, default=5.0, metavar="S", help="between readings; default: 5"
    )
    add_common_options(parser, as_json=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serves until SIGTERM or Ctrl-C."""
    from tunan.telemetry.exporter import exporting

    ended = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: ended.set())
    try:
        with exporting(args.host, args.port, args.interval) as (port, reader):
            devices = reader.last.report.devices if reader.last.report else ()
            seen = f"{len(devices)} NPUs" if devices else f"no NPU ({reader.last.error})"
            _say(f"monitor: http://{args.host}:{port}/metrics, {seen}")
            ended.wait()
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201


def _port(value: str) -> int:
    port = int(value)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError("must be between 0 and 65535")
    return port


def _seconds(value: str) -> float:
    seconds = float(value)
    if not 0 < seconds < 86400:
        raise argparse.ArgumentTypeError("must be more than 0 and less than a day")
    return seconds
