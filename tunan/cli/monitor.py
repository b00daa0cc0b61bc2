"""`tunan monitor`: a Prometheus exporter for NPUs and their host."""

import argparse
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tunan.config.deployment import Deployment
    from tunan.config.monitor import Monitor

_DESCRIPTION = """\
Serves http://HOST:PORT/metrics for Prometheus until it is stopped: NPUs under the names of
Ascend's npu-exporter, plus npu_utilization (per cent) and npu_memory_used (MB), and the host's
memory and load. Beside them stand the metrics of other programs: with --config those of its
gateway and replicas, with --scrape those of any, each with the label `instance`.
Needs neither an NPU nor the engine; without an NPU tunan_monitor_npus_readable is 0.
"""
_EXAMPLE = """\
example:
  tunan monitor --port 8000
  tunan monitor --config deploy.yaml     (its `monitor`, and its gateway's metrics)
  tunan monitor --scrape http://10.0.0.5:8080
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
    parser.add_argument("--config", type=Path, metavar="FILE", help="deployment file")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=_port, help="default: 8000; 0: any")
    parser.add_argument(
        "--interval", type=seconds_between, metavar="S", help="between readings; default: 5"
    )
    others = parser.add_mutually_exclusive_group()
    others.add_argument(
        "--scrape",
        action="append",
        type=_page,
        metavar="URL",
        help="show the metrics of this page too, again for each; default: the gateway of --config",
    )
    others.add_argument(
        "--no-scrape", action="store_true", help="show this machine's metrics alone"
    )
    add_common_options(parser, as_json=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serves until SIGTERM or Ctrl-C."""
    from tunan.ascend.probes.programs import end_running
    from tunan.telemetry.exporter import exporting
    from tunan.telemetry.targets import asking_of

    settings, deployment = _settings(args)
    asking = asking_of(settings, deployment)
    ended = threading.Event()

    def end(*_: object) -> None:
        ended.set()
        end_running()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        place = (args.host, settings.port, settings.interval_s)
        with exporting(*place, asking, lambda line: _say(f"monitor: {line}")) as (port, reader):
            devices = reader.last.report.devices if reader.last.report else ()
            seen = f"{len(devices)} NPUs" if devices else f"no NPU ({reader.last.error})"
            host = f"[{args.host}]" if ":" in args.host else args.host
            beside = "".join(f", with {target.instance}" for target in asking.targets)
            _say(f"monitor: http://{host}:{port}/metrics, {seen}{beside}")
            ended.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def _settings(args: argparse.Namespace) -> "tuple[Monitor, Deployment | None]":
    """The deployment file's `monitor` with the command line's options on top, and the file."""
    from tunan.config import load_deployment
    from tunan.config.loading import without_unset
    from tunan.config.monitor import Monitor

    scrape = [] if args.no_scrape else args.scrape
    options = {"port": args.port, "interval_s": args.interval, "scrape": scrape}
    if args.config is not None:
        deployment = load_deployment(args.config, {"monitor": options})
        return deployment.monitor, deployment
    return Monitor(**without_unset(options)), None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201


def _page(value: str) -> str:
    from tunan.config.monitor import metrics_page

    try:
        return metrics_page(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _port(value: str) -> int:
    if not value.isdecimal() or int(value) > 65535:
        raise argparse.ArgumentTypeError("must be a number between 0 and 65535")
    return int(value)


def seconds_between(value: str) -> float:
    """An argument that is the time between two readings. Raises `ArgumentTypeError`."""
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 86400:
        raise argparse.ArgumentTypeError("must be a number of seconds, less than a day")
    return seconds
