"""The chaos benchmark's gateways with one address: the figures, and the network itself."""

import contextlib
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from benchmarks.chaos import run_takeover, undisturbed
from benchmarks.chaos_check import taken_over
from benchmarks.chaos_gateways import sharing
from benchmarks.chaos_network import device_of, here, holds, inside, machines, shared
from benchmarks.chaos_scenario import Event, Scenario
from benchmarks.chaos_streams import Progress, Received, load, run_persistent
from tests.gateway.fake_engine import Trouble, fake_engine

SUBNET = "10.213.78"  # another one than the benchmark's
SHARED = shared(SUBNET)
HOOK = Path(__file__).parents[2] / "deploy" / "gateway" / "virtual-ip"

may_make_networks = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None or not Path("/dev/net/tun").exists(),
    reason="needs root, iproute2 and /dev/net/tun",
)


def received(began: float, times: list[float], problem: str = "") -> Received:
    return Received(
        began, ids=[7] * len(times), text="x", times=times, finish="" if problem else "length",
        usage=len(times), problem=problem, ended=times[-1],
    )  # fmt: skip


def test_a_takeover_lasts_until_the_first_token_of_a_request_that_was_sent_after_the_kill() -> None:
    whole = received(0.0, [0.5, 0.6, 0.7])
    cut, again = received(1.0, [1.1, 1.2], "cut"), received(2.1, [4.0, 4.1, 4.2])
    sooner = received(2.2, [3.5, 3.6, 3.7])
    clients = [("a", [cut, again]), ("b", [cut, sooner]), ("c", [whole])]
    found = taken_over({"a": whole, "b": whole, "c": whole}, clients, 2.0)
    assert found["back_s"] == 1.5
    assert (found["requests"], found["requests_lost"]) == (5, 2)
    assert found["stall_p99_s"] == pytest.approx(2.8)
    assert found["problems"] == ["a: cut", "b: cut"]
    assert (found["tokens_lost"], found["tokens_changed"]) == (0, 0)


async def test_a_client_asks_again_until_its_answer_is_whole() -> None:
    async with fake_engine() as engine:
        engine.eos = False
        engine.troubles = [Trouble("reset", 3), Trouble("hang up"), Trouble("reset", 5)]
        ((name, answers),) = await run_persistent(engine.url, load("fake", 1, 20), Progress())
    assert name == "0 greedy completion"
    assert [len(one.ids) for one in answers] == [3, 5, 20]
    assert [bool(one.problem) for one in answers] == [True, True, False]


@may_make_networks
def test_an_address_moves_between_machines_and_leads_to_where_it_is() -> None:
    names = ("tunan-test-a", "tunan-test-b")
    port = 8099
    with machines(names, SUBNET) as network:
        servers = [
            subprocess.Popen(
                (*inside(name), "python3", "-c", ECHO, str(port), name), stdout=subprocess.PIPE
            )
            for name in names
        ]
        try:
            for server in servers:
                assert server.stdout is not None
                server.stdout.readline()
            for name in (*names, names[0]):
                move(name, "acquire")
                assert [holds(one, SHARED) for one in names] == [one == name for one in names]
                assert asked(name, port)
                move(name, "release")
            assert sorted(network.values()) == [f"{SUBNET}.11", f"{SUBNET}.12"]
        finally:
            for server in servers:
                server.kill()
                server.communicate()
    listed = subprocess.run(("ip", "netns"), capture_output=True, text=True, check=True)
    assert "tunan-test" not in listed.stdout


@may_make_networks
@pytest.mark.skipif(shutil.which("arping") is None, reason="needs arping, to tell of the move")
async def test_a_gateway_that_is_killed_is_followed_at_the_same_address(tmp_path: Path) -> None:
    """Everything of the scenario but the engines is real."""
    asks = load("fake", 4, 60)
    names = ("tunan-test-c", "tunan-test-d")
    scenario = Scenario(
        name="killed", setup="gateways", events=(Event(at=0.3, do="kill", process="gateway"),)
    )
    with machines(names, SUBNET):
        async with fake_engine(host=here(SUBNET)) as one, fake_engine(host=here(SUBNET)) as two:
            for engine in (one, two):
                engine.eos, engine.gap_s = False, 0.05
            with sharing(names, [one.url, two.url], tmp_path, SUBNET) as service:
                assert await service.until_whole()
                first = service.holder and service.holder()
                expected = await undisturbed(service, asks)
                figures = await run_takeover(scenario, service, asks, expected)
                assert service.holder
                assert service.holder() != first
    assert figures["requests_lost"] == figures["hit"] == 4
    assert figures["address_s"] > 0
    assert figures["back_s"] > 0
    for key in ("tokens_lost", "tokens_duplicated", "tokens_changed", "usage_wrong"):
        assert figures[key] == 0


def move(name: str, action: str) -> None:
    """As the hook of a gateway there does."""
    subprocess.run((*inside(name), str(HOOK), f"{SHARED}/32", "eth0", action), check=True)
    if shutil.which("arping") is None:  # then nobody is told
        subprocess.run(("ip", "neigh", "flush", "dev", device_of(SUBNET)), check=True)


def asked(name: str, port: int) -> bool:
    """Whether who has the shared address says, in the end, that it is `name`."""
    for _ in range(100):
        with contextlib.suppress(OSError), socket.create_connection((SHARED, port), 0.3) as one:
            if one.recv(100) == name.encode():
                return True
    return False


ECHO = """
import socket, sys
listener = socket.create_server(("0.0.0.0", int(sys.argv[1])))
print("listens", flush=True)
while True:
    connection, _ = listener.accept()
    connection.sendall(sys.argv[2].encode())
    connection.close()
"""
