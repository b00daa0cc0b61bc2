"""`/admin`: what an operator may see and do, behind a key of its own.

GET /admin/replicas; POST /admin/replicas/NAME/hold sends nothing new to a replica, and
POST /admin/replicas/NAME/release sends to it again. GET /admin/holder tells which gateway holds
the shared address.
"""

from typing import Any

from tunan.gateway.election import Election
from tunan.gateway.keys import ApiKeys
from tunan.gateway.pool import Pool
from tunan.gateway.replica import Replica
from tunan.gateway.responses import Scope, Send, authorization, send_error, send_json

PREFIX = "/admin"
_HOLD = {"hold": True, "release": False}


def describe(replica: Replica) -> dict[str, Any]:
    """The state of one replica, as `/ready` and `/admin/replicas` show it."""
    return {
        "name": replica.name,
        "role": str(replica.role),
        "stage": str(replica.stage),
        "done": replica.done,
        "total": replica.total,
        "detail": "held" if replica.held else replica.describe(),
        "in_flight": replica.in_flight,
    }


async def administer(
    pool: Pool, election: Election | None, keys: ApiKeys | None, scope: Scope, send: Send
) -> None:
    """Answers a request to `/admin` or below. Without admin keys nothing is there."""
    if keys is None:
        await send_error(send, 404, "not_found", "there is no admin API: gateway.admin_keys_file")
        return
    if not keys.open_for(authorization(scope)):
        challenge = [(b"www-authenticate", b"Bearer")]
        await send_error(send, 401, "invalid_api_key", "missing or wrong admin key", challenge)
        return
    parts = scope["path"].removeprefix(PREFIX).strip("/").split("/")
    match scope["method"], parts:
        case "GET", ["replicas"]:
            replicas = [
                describe(replica)
                | {
                    "address": str(replica.address),
                    "outstanding_tokens": replica.outstanding_tokens,
                }
                for replica in pool.replicas
            ]
            await send_json(send, 200, {"replicas": replicas})
        case "GET", ["holder"] if election:
            await send_json(send, 200, election.describe())
        case "POST", ["replicas", name, action] if action in _HOLD:
            found = [replica for replica in pool.replicas if replica.name == name]
            if not found:
                await send_error(send, 404, "not_found", "there is no such replica")
                return
            found[0].hold(_HOLD[action])
            await send_json(send, 200, describe(found[0]))
        case _:
            await send_error(send, 404, "not_found", "the admin API does not have this")
