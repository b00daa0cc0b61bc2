"""`tunan top`: the NPUs, the host and the running services on a terminal, again and again."""

import argparse
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from tunan.cli.monitor import seconds_between
from tunan.errors import OutsideError

if TYPE_CHECKING:
    from tunan.ascend.probes.npu import NpuDevice
    from tunan.telemetry.reading import Reading

EXAMPLE = """examples:
  tunan top
  tunan top --once      (for a log)
"""
COLUMNS = ("NPU", "model", "health", "AI cores", "memory MB", "°C", "W", "link", "processes")
UNKNOWN = "-"
CLEAR = "\x1b[H\x1b[2J"  # ECMA-48: cursor to the corner, erase the display
_GIB = 1 << 30


def register(subparsers: Any) -> None:
    """Adds `top` to the command line."""
    from tunan.cli.main import add_common_options

    parser = subparsers.add_parser(
        "top",
        help="show NPUs, host and services, live",
        description="Shows the NPUs and memory of this machine and each running `tunan serve` of "
        "this user, until Ctrl-C. What a device does not tell is `-`.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--once", action="store_true", help="show it once and end")
    parser.add_argument(
        "--interval", type=seconds_between, default=2.0, metavar="S", help="between two; default: 2"
    )
    add_common_options(parser, as_json=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Shows until SIGTERM or Ctrl-C."""
    from tunan.ascend.probes.npus import look_at_npus
    from tunan.ascend.probes.programs import end_running
    from tunan.ascend.probes.sight import this_machine
    from tunan.telemetry.links import look_at_links
    from tunan.telemetry.reading import Reader

    reader = Reader(
        lambda: look_at_npus(this_machine()),
        args.interval,
        lambda count: look_at_links(this_machine(), count),
    )
    ended = threading.Event()

    def end(*_: object) -> None:
        ended.set()
        end_running()  # a tool that hangs

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        while not ended.is_set():
            reader.read_once()
            if not ended.is_set():
                _show(_screen(reader.last))
            if args.once:
                break
            ended.wait(args.interval)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def _show(screen: str) -> None:
    clear = CLEAR if sys.stdout.isatty() else ""
    print(f"{clear}{screen}", flush=True)  # noqa: T201


def _screen(reading: "Reading") -> str:
    return "\n\n".join((_host(), _npus(reading), _services())) + "\n"


def _host() -> str:
    from tunan.ascend.probes.host import look_at_memory
    from tunan.ascend.probes.sight import this_machine

    sight = this_machine()
    memory = look_at_memory(sight).value
    free = memory.available if memory else None
    amount = f"{memory.total / _GIB:.1f} GiB" if memory else UNKNOWN
    rest = f", {free / _GIB:.1f} free" if free is not None else ""
    load = (sight.read("/proc/loadavg") or UNKNOWN).split()[0]
    return f"{sight.system('hostname') or UNKNOWN}: memory {amount}{rest}; load {load}"


def _npus(reading: "Reading") -> str:
    from tunan.cli.table import render
    from tunan.telemetry.reading import device_ids

    if reading.report is None:
        return f"no NPU: {reading.error}"
    numbers = device_ids(reading.report)
    devices = reading.report.devices
    rows = [_row(reading, *pair) for pair in enumerate(zip(numbers, devices, strict=True))]
    gone = sorted(reading.seen - set(numbers))
    lines = [f"NPU {number}: gone" for number in gone]
    return "\n".join([render(COLUMNS, rows), *lines])


def _row(reading: "Reading", place: int, numbered: "tuple[str, NpuDevice]") -> list[str]:
    number, device = numbered
    up = reading.links.get(place)
    held = reading.report.processes_of(device) if reading.report else None
    cores = device.aicore_percent
    return [
        number,
        device.name or UNKNOWN,
        device.health or UNKNOWN,
        UNKNOWN if cores is None else f"{cores} %",
        f"{_figure(device.memory_used_mb)}/{_figure(device.memory_total_mb)}",
        _figure(device.temperature_c),
        _figure(device.power_w),
        UNKNOWN if up is None else "up" if up else "down",
        UNKNOWN if held is None else str(len(held)),
    ]


def _figure(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:g}" if value < 1000 else f"{value:.0f}"


def _services() -> str:
    from tunan.cli.status import shown
    from tunan.supervisor.control_client import find_services

    try:
        return "\n\n".join(shown(service.state) for service in find_services())
    except OutsideError as error:
        return str(error)
