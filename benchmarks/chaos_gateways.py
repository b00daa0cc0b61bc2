"""Two gateways with one address, on machines of their own as far as the network goes.

The engines, etcd and the clients are here; each `tunan gateway` has a network namespace
(chaos_network.py), and the shipped hook moves the address between them.
"""

import contextlib
import json
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from benchmarks.chaos_network import SUBNET, NetworkError, here, holds, inside, machines, shared
from benchmarks.chaos_service import TUNAN, Service, free_port, running, serving

HOOK = Path(__file__).parents[1] / "deploy" / "gateway" / "virtual-ip"
NAMES = ("tunan-gateway-a", "tunan-gateway-b")
PORT = 8080
NEEDED = {"etcd": "etcd-server", "arping": "iputils-arping", "ip": "iproute2"}


@contextlib.asynccontextmanager
async def gateways(model: Path, dtype: str, folder: Path) -> AsyncIterator[Service]:
    """A ready service at the shared address; nothing of it is left afterwards.

    Raises `ServiceError` (of `Service.until_ready`) or `NetworkError`.
    """
    for program, package in NEEDED.items():
        if shutil.which(program) is None:
            raise NetworkError(f"there is no {program}; install {package}")
    with contextlib.ExitStack() as stack:
        stack.enter_context(machines(NAMES))
        ports = (free_port(), free_port())
        children = [
            stack.enter_context(serving(model, dtype, folder, port, {"count": 1}, here()))
            for port in ports
        ]
        urls = [f"http://{here()}:{port}" for port in ports]
        found = stack.enter_context(sharing(NAMES, urls, folder))
        found.children = [*children, *found.children]
        await found.until_ready()
        yield found


@contextlib.contextmanager
def sharing(
    names: Sequence[str], engines: Sequence[str], folder: Path, subnet: str = SUBNET
) -> Iterator[Service]:
    """An etcd here, and in each of the `machines` a gateway before `engines`."""
    with contextlib.ExitStack() as stack:
        clients, peers = (f"http://{here(subnet)}:{free_port()}" for _ in range(2))
        etcd = stack.enter_context(running(_etcd(folder, clients, peers), folder, "etcd"))
        children = {}
        for name in names:
            words = _gateway(name, folder, clients, engines, shared(subnet))
            children[name] = stack.enter_context(running(words, folder, name))

        def holder() -> int:
            (name,) = (name for name in names if holds(name, shared(subnet)))
            return children[name].pid

        url = f"http://{shared(subnet)}:{PORT}"
        yield Service(url, (), (), folder, holder, [etcd, *children.values()])


def _etcd(folder: Path, clients: str, peers: str) -> list[str]:
    return [
        *("etcd", "--name", "one", "--data-dir", str(folder / "etcd")),
        *("--listen-client-urls", clients, "--advertise-client-urls", clients),
        *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
        *("--initial-cluster", f"one={peers}"),
    ]


def _gateway(name: str, folder: Path, etcd: str, engines: Sequence[str], address: str) -> list[str]:
    deployment = {
        "model": {"path": "."},
        "replicas": [{"url": url} for url in engines],
        "gateway": {
            "host": "0.0.0.0",
            "port": PORT,
            "resume_sampled": True,
            "etcd": {
                "endpoints": [etcd],
                "name": name,
                "hook": [str(HOOK), f"{address}/32", "eth0"],
            },
        },
    }
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(deployment))
    return [*inside(name), *TUNAN, "gateway", "--config", str(path)]
