"""TLS to replicas, with real certificates: which are accepted, and what is said of the others."""

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from tests.gateway.fake_engine import FakeEngine
from tests.gateway.fleet import CHAT, read
from tests.gateway.test_resume import body_for
from tunan.config.deployment import Gateway
from tunan.gateway.app import front_door
from tunan.gateway.pool import Pool
from tunan.gateway.replica import HttpAddress, Replica
from tunan.gateway.saying import saying
from tunan.gateway.server import address_of, bind, serving

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two authorities, and of the first: a server's certificate, one that has expired, one for
    another host, and a client's with its key.
    """
    folder = tmp_path_factory.mktemp("certificates")

    def run(*words: str) -> None:
        subprocess.run(("openssl", *words), cwd=folder, check=True, capture_output=True)

    for authority in ("ca", "other"):
        usage = ("-addext", "keyUsage=critical,keyCertSign", "-subj", f"/CN={authority}")
        run("req", "-x509", *KEY, *usage, "-keyout", f"{authority}.key", "-out", f"{authority}.pem")
    for name, host, days in (
        ("server", "IP:127.0.0.1", "1"),
        ("expired", "IP:127.0.0.1", "0"),
        ("elsewhere", "DNS:elsewhere.example", "1"),
        ("client", "DNS:client", "1"),
    ):
        (folder / "names").write_text(f"subjectAltName={host}")
        run("req", *KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
        run("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", "-days", days, *signed)
        both = [(folder / f"{name}.{part}").read_text() for part in ("pem", "key")]
        (folder / f"{name}.both").write_text("".join(both))
    return folder


@contextlib.asynccontextmanager
async def engine(certificate: Path, client_ca: Path | None = None) -> AsyncIterator[str]:
    """The address of a fake engine that shows `certificate`, and asks for its client's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    if client_ca:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    runner = web.ServerRunner(web.Server(FakeEngine().handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def before(url: str, **settings: Any) -> AsyncIterator[tuple[Replica, str]]:
    """A gateway before the engine at `url`, as it has just been started."""
    replica = Replica(HttpAddress(url))
    gateway = Gateway(probe_interval_s=0.05, probe_timeout_s=60, **settings)
    with contextlib.closing(bind("127.0.0.1", 0)) as listener:
        async with front_door(Pool([replica]), gateway) as app, serving(app, listener):
            yield replica, address_of(listener)


async def until_told(replica: Replica) -> str:
    """What stands in the way of its being ready."""
    async with asyncio.timeout(120):
        while not (replica.problem or replica.ready):  # noqa: ASYNC110  # probes make it so
            await asyncio.sleep(0.01)
    return replica.describe()


async def test_a_replica_that_the_authority_signed_answers(files: Path) -> None:
    async with (
        engine(files / "server.both") as url,
        before(url, replica_ca_file=files / "ca.pem") as (replica, door),
        ClientSession() as client,
    ):
        assert await until_told(replica) == "ready"
        async with client.post(door + CHAT, json=body_for(CHAT)) as answer:
            assert (await read(answer)).done


@pytest.mark.parametrize(
    ("certificate", "authority", "said"),
    [
        ("server", "other", "unable to get local issuer certificate"),
        ("server", None, "unable to get local issuer certificate"),
        ("expired", "ca", "certificate has expired"),
        ("elsewhere", "ca", "IP address mismatch, certificate is not valid for '127.0.0.1'"),
    ],
)
async def test_a_certificate_that_is_not_right_keeps_the_replica_away_and_is_named(
    files: Path, certificate: str, authority: str | None, said: str
) -> None:
    settings = {"replica_ca_file": files / f"{authority}.pem"} if authority else {}
    async with (
        engine(files / f"{certificate}.both") as url,
        before(url, **settings) as (replica, door),
        ClientSession() as client,
    ):
        told = await until_told(replica)
        assert told == f"away: its certificate is not accepted: {said}"
        async with client.get(f"{door}/ready") as answer:
            assert answer.status == 503
            assert said in (await answer.json())["replicas"][0]["detail"]


async def test_a_replica_that_asks_for_a_certificate_is_shown_one(files: Path) -> None:
    async with engine(files / "server.both", files / "ca.pem") as url:
        shown = {"replica_cert_file": files / "client.both", "replica_ca_file": files / "ca.pem"}
        async with before(url, **shown) as (replica, _):
            assert await until_told(replica) == "ready"
        async with before(url, replica_ca_file=files / "ca.pem") as (replica, _):
            told = await until_told(replica)
            assert told.endswith("; perhaps it wants a certificate: gateway.replica_cert_file")


async def test_a_replica_without_tls_is_told_from_one_whose_certificate_is_wrong(
    files: Path,
) -> None:
    runner = web.ServerRunner(web.Server(FakeEngine().handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    async with before(url, replica_ca_file=files / "ca.pem") as (replica, _):
        assert (await until_told(replica)).startswith("away: TLS with it fails: ")
    await runner.cleanup()


async def test_one_line_says_at_the_start_why_a_replica_is_not_ready(files: Path) -> None:
    said: list[str] = []
    async with (
        engine(files / "expired.both") as url,
        before(url, replica_ca_file=files / "ca.pem") as (replica, _),
    ):
        await until_told(replica)
        async with saying(Pool([replica]), said.append, 0):
            await asyncio.sleep(0.05)
    assert said == [
        f"replica-0 is not ready yet: {url}: away: its certificate is not accepted: "
        "certificate has expired"
    ]
