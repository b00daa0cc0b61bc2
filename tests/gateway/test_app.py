"""The front door's own answers."""

from pathlib import Path

from aiohttp import WSServerHandshakeError

from tests.gateway.engines import front_door
from tunan.gateway.replica import Stage

KEY = "a-key-of-enough-length"


async def test_health_is_alive_whatever_the_stage(tmp_path: Path) -> None:
    async with front_door(tmp_path) as door:
        door.replica.move(Stage.FAILED, problem="gone")
        async with door.client.get(f"{door.url}/health") as answer:
            assert (answer.status, await answer.json()) == (200, {"status": "alive"})


async def test_ready_says_the_stage_and_when_to_ask_again(tmp_path: Path) -> None:
    async with front_door(tmp_path) as door:
        async with door.client.get(f"{door.url}/ready") as answer:
            assert answer.status == 200
            assert "retry-after" not in answer.headers
        door.replica.stage = Stage.STARTING
        door.replica.move(Stage.LOADING, 3, 12)
        async with door.client.get(f"{door.url}/ready") as answer:
            assert answer.status == 503
            assert int(answer.headers["retry-after"]) > 0
            assert await answer.json() == {
                "ready": False,
                "stage": "loading",
                "done": 3,
                "total": 12,
                "detail": "loading 3/12 blocks",
                "replicas": [
                    {
                        "name": "replica-0",
                        "role": "active",
                        "stage": "loading",
                        "done": 3,
                        "total": 12,
                        "detail": "loading 3/12 blocks",
                        "in_flight": 0,
                    }
                ],
            }


async def test_a_draining_replica_takes_no_new_request(tmp_path: Path) -> None:
    async with front_door(tmp_path) as door:
        door.replica.move(Stage.DRAINING)
        async with door.client.post(f"{door.url}/v1/completions", json={}) as answer:
            assert answer.status == 503
            assert "retry-after" in answer.headers
            assert (await answer.json())["error"]["type"] == "service_unavailable"
        assert door.engine.requests == []


async def test_a_draining_replica_does_not_become_ready_again(tmp_path: Path) -> None:
    async with front_door(tmp_path) as door:
        door.replica.move(Stage.DRAINING)
        door.replica.move(Stage.READY)
        assert door.replica.stage is Stage.DRAINING
        door.replica.move(Stage.FAILED, problem="died")
        assert door.replica.describe() == "failed: died"


async def test_a_request_needs_a_key_where_there_are_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(KEY)
    async with front_door(tmp_path, keys=file) as door:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}):
            async with door.client.get(f"{door.url}/v1/models", headers=headers) as answer:
                assert answer.status == 401
                assert answer.headers["www-authenticate"] == "Bearer"
        right = {"Authorization": f"Bearer {KEY}"}
        async with door.client.get(f"{door.url}/v1/models", headers=right) as answer:
            assert answer.status == 200
        async with door.client.get(f"{door.url}/ready") as answer:
            assert answer.status == 200


async def test_websockets_are_refused(tmp_path: Path) -> None:
    async with front_door(tmp_path) as door:
        try:
            async with door.client.ws_connect(f"{door.url}/v1/realtime"):
                raise AssertionError
        except WSServerHandshakeError:
            pass
