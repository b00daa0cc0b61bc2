"""`tunan gateway`: the front door alone, before engines that were started elsewhere."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Coroutine
from typing import Any

from tunan.config.deployment import Gateway
from tunan.config.replicas import RemoteReplica
from tunan.gateway.app import FrontDoor, front_door
from tunan.gateway.election import election_of, taking_part
from tunan.gateway.pool import Pool
from tunan.gateway.replica import HttpAddress, Replica, Role
from tunan.gateway.saying import saying
from tunan.gateway.server import address_of, bind, serving

CUT_STREAMS_S = 2.0  # for running streams to be told that they end


def serve_gateway(gateway: Gateway, engines: tuple[RemoteReplica, ...]) -> int:
    """Serves until SIGTERM or Ctrl-C: 0 after a drain. Raises `UsageError` or `OutsideError`."""
    return _run(_serve(gateway, engines))


def _run(service: Coroutine[Any, Any, int]) -> int:
    """On uvloop where it is installed: it takes less time an event."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(service)
    return uvloop.run(service)


async def _serve(gateway: Gateway, engines: tuple[RemoteReplica, ...]) -> int:
    loop = asyncio.get_running_loop()
    asked, insisted = asyncio.Event(), asyncio.Event()

    def heard() -> None:
        (insisted if asked.is_set() else asked).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, heard)
    pool = Pool(
        [
            Replica(HttpAddress(engine.url), f"replica-{number}", Role(engine.role))
            for number, engine in enumerate(engines)
        ]
    )
    with contextlib.closing(bind(gateway.host, gateway.port)) as listener:
        election = election_of(gateway.etcd, listener.getsockname()[1], pool, _tell)
        async with (
            front_door(pool, gateway, election) as app,
            serving(app, listener),
            taking_part(election, asked),
        ):
            address = address_of(listener, tls=gateway.tls_cert_file is not None)
            _tell(f"gateway at {address}; replicas: {len(engines)}")
            async with saying(pool, _tell, gateway.probe_timeout_s + gateway.probe_interval_s):
                await asked.wait()
            if election is not None:  # requests are not refused where they still come to
                await election.left.wait()
            await _drain(app, pool, insisted, gateway.shutdown_timeout_s)
    return 0


async def _drain(app: FrontDoor, pool: Pool, insisted: asyncio.Event, limit_s: float) -> None:
    """Lets running requests finish, until it is time or somebody insists."""
    app.drain()
    empty = asyncio.create_task(app.empty())
    insist = asyncio.create_task(insisted.wait())
    await asyncio.wait({empty, insist}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    insist.cancel()
    pool.close()
    for replica in pool.replicas:
        for answer in replica.answers:
            if answer.cut:
                answer.cut("the gateway is shutting down", True)
    await asyncio.wait({empty}, timeout=CUT_STREAMS_S)
    empty.cancel()
    _tell("stopped")


def _tell(text: str) -> None:
    with contextlib.suppress(OSError):
        print(f"tunan: {text}", file=sys.stderr, flush=True)  # noqa: T201
