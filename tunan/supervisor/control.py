"""The control socket of a service: `tunan status` and `tunan rollout` of the same user ask here.

One line of JSON with the verb; the answer is lines of JSON, the last with `done` or `error`. The
socket lies in the private runtime directory, so no other user reaches it, and there is no key.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

from tunan.errors import TunanError, UsageError
from tunan.gateway.replica import Replica
from tunan.supervisor.fleet import Fleet

CONTROL_SOCKET = "control.sock"
PATIENCE_S = 5.0  # for the one line of a question


@contextlib.asynccontextmanager
async def controlled(runtime: Path, fleet: Fleet) -> AsyncIterator[None]:
    """Answers for `fleet` while the block runs."""
    path = runtime / CONTROL_SOCKET
    server = await asyncio.start_unix_server(partial(_answer, fleet), str(path))
    path.chmod(0o600)
    try:
        yield
    finally:
        server.close()


def status_of(fleet: Fleet) -> dict[str, Any]:
    """The service and each of its replicas, as `tunan status --json` shows them."""
    deployment = fleet.deployment
    return {
        "name": deployment.name,
        "model": deployment.served_model_name,
        "address": fleet.address,
        "ready": fleet.pool.ready,
        "rollout": fleet.rolling,
        "shared_address": fleet.election.describe() if fleet.election else None,
        "replicas": [_state(fleet, replica) for replica in fleet.pool.replicas],
    }


def _state(fleet: Fleet, replica: Replica) -> dict[str, Any]:
    state: dict[str, Any] = {
        "name": replica.name,
        "role": str(replica.role),
        "stage": str(replica.stage),
        "detail": replica.describe(),
        "address": str(replica.address),
        "in_flight": replica.in_flight,
        "outstanding_tokens": replica.outstanding_tokens,
    }
    for life in fleet.lives:
        if life.replica is replica:
            state |= {
                "pid": life.pid,
                "starts": life.starts,
                "failures": life.failures,
                "log": str(life.plan.log),
                "memory": fleet.pages.of(replica.name),
            }
    return state


async def _answer(fleet: Fleet, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    # Whoever asked may be gone before the end; a rollout goes on.
    def say(**values: object) -> None:
        if not writer.is_closing():
            writer.write(json.dumps(values, ensure_ascii=False).encode() + b"\n")

    try:
        await _obey(fleet, await _verb(reader), say)
        say(done=True)
    except TunanError as error:
        say(error=str(error), status=error.exit_status)
    finally:
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()


async def _obey(fleet: Fleet, verb: str, say: Any) -> None:
    if verb == "status":
        say(service=status_of(fleet))
    elif verb == "rollout":
        await fleet.rollout(lambda text: say(progress=text))
    else:
        raise UsageError(f"the service knows `status` and `rollout`, not {verb!r}")


async def _verb(reader: asyncio.StreamReader) -> str:
    try:
        line = await asyncio.wait_for(reader.readline(), PATIENCE_S)
        return str(json.loads(line)["verb"])
    except (TimeoutError, OSError, ValueError, KeyError, TypeError):
        raise UsageError("the question was no line of JSON with a `verb`") from None
