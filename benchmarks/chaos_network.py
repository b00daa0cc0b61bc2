"""A network of several machines on one: namespaces, joined by a switch that passes frames on.

Each namespace has its own addresses, neighbours and routes, so an address really moves from one to
another: by `ip` there, and by ARP here. Needs root, iproute2 and /dev/net/tun.
"""

import contextlib
import fcntl
import os
import select
import struct
import subprocess
import threading
from collections.abc import Iterator, Sequence

SUBNET = "10.213.77"
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_FRAME = 1 << 16
_ETHERNET = 14  # bytes before the payload: to, from, type
_GROUP = 1  # bit of the first byte of an address of many


class NetworkError(Exception):
    """The network could not be made here."""


@contextlib.contextmanager
def machines(names: Sequence[str], subnet: str = SUBNET) -> Iterator[dict[str, str]]:
    """The address of each namespace, by its name; nothing of them is left afterwards.

    `subnet` is the first three bytes of all addresses. Raises `NetworkError`.
    """
    addresses = {name: f"{subnet}.{number}" for number, name in enumerate(names, 11)}
    device = device_of(subnet)
    if os.geteuid() != 0:
        raise NetworkError("namespaces and addresses need root")
    with contextlib.ExitStack() as stack:
        taps = [stack.enter_context(_tap(device))]
        _ip("address", "add", f"{here(subnet)}/24", "dev", device)
        _ip("link", "set", device, "up")
        for number, (name, address) in enumerate(addresses.items()):
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "delete", name)
            far = f"{device}-{number}"
            taps.append(stack.enter_context(_tap(far)))
            _ip("link", "set", far, "netns", name, "name", "eth0")
            for words in (("address", "add", f"{address}/24", "dev", "eth0"),
                          ("link", "set", "eth0", "up"), ("link", "set", "lo", "up")):  # fmt: skip
                _ip("-netns", name, *words)
        stack.enter_context(_switch(taps))
        yield addresses


def here(subnet: str = SUBNET) -> str:
    """This machine's address."""
    return f"{subnet}.1"


def shared(subnet: str = SUBNET) -> str:
    """The address that the others share."""
    return f"{subnet}.100"


def device_of(subnet: str) -> str:
    """The name of this machine's device in it; in a namespace it is eth0."""
    return f"tunan{subnet.rpartition('.')[2]}"


def inside(name: str) -> tuple[str, ...]:
    """What to put before a command for it to run in that namespace, as this very process."""
    return ("ip", "netns", "exec", name)


def holds(name: str, address: str) -> bool:
    """Whether that namespace has `address`."""
    words = ("ip", "-netns", name, "-oneline", "address", "show", "to", address)
    return bool(subprocess.run(words, capture_output=True, check=True).stdout)


def _ip(*words: str) -> None:
    done = subprocess.run(("ip", *words), capture_output=True, text=True)
    if done.returncode:
        raise NetworkError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@contextlib.contextmanager
def _tap(name: str) -> Iterator[int]:
    """The end of an Ethernet device that a program reads and writes; the device goes with it."""
    try:
        end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TAP | _IFF_NO_PI))
    except OSError as error:
        raise NetworkError(f"/dev/net/tun: {error.strerror}") from None
    try:
        yield end
    finally:
        os.close(end)


@contextlib.contextmanager
def _switch(taps: Sequence[int]) -> Iterator[None]:
    """Passes frames on while the block runs, in a thread: what is measured must not wait for it."""
    stop, stopped = os.pipe()
    thread = threading.Thread(target=_pass_on, args=(taps, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.close(stopped)
        thread.join()
        os.close(stop)


def _pass_on(taps: Sequence[int], stop: int) -> None:
    """As a switch does: it learns from each frame where its sender is, and floods the others."""
    known: dict[bytes, int] = {}
    while True:
        readable, _, _ = select.select([*taps, stop], [], [])
        if stop in readable:
            return
        for tap in readable:
            with contextlib.suppress(OSError):  # a device that is down, or a full one: it is lost
                frame = os.read(tap, _FRAME)
                known[frame[6:12]] = tap
                _send(frame, tap, taps, known)


def _send(frame: bytes, came: int, taps: Sequence[int], known: dict[bytes, int]) -> None:
    if len(frame) < _ETHERNET:
        return
    target = None if frame[0] & _GROUP else known.get(frame[:6])
    for tap in taps if target is None else (target,):
        if tap != came:
            with contextlib.suppress(OSError):
                os.write(tap, frame)
