"""Listens for the front door: uvicorn on a socket that is bound before anything slow begins."""

import asyncio
import contextlib
import errno
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Generator

import uvicorn

from tunan.errors import OutsideError, UsageError
from tunan.gateway.app import FrontDoor
from tunan.gateway.guard import guarded
from tunan.gateway.noise import quiet

BACKLOG = 2048
KEEP_ALIVE_S = 75  # longer than usual client pools keep idle connections
CONNECTIONS = 65_536  # open files: programs start with 1024, which is soon used up


class _Server(uvicorn.Server):
    """uvicorn, except that signals stay with the supervisor, which has to drain first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def bind(host: str, port: int) -> socket.socket:
    """A listening TCP socket. Raises `OutsideError` or `UsageError` with one clear line."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise UsageError(f"gateway.host: cannot find the address {host!r}") from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise OutsideError(
                f"{host}:{port} is taken by another program; stop it or choose another --port"
            ) from None
        raise OutsideError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    listener.setblocking(False)
    return listener


def address_of(listener: socket.socket, tls: bool = False) -> str:
    """The URL under which `listener` is reached."""
    host, port = listener.getsockname()[:2]
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _allow_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS if hard == resource.RLIM_INFINITY else min(CONNECTIONS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextlib.asynccontextmanager
async def serving(app: FrontDoor, listener: socket.socket) -> AsyncIterator[None]:
    """Serves `app` on `listener` while the block runs, then closes every connection."""
    settings = app.settings
    config = uvicorn.Config(
        app,
        http=guarded(int(settings.max_header_kib * 1024), settings.header_timeout_s),
        ssl_certfile=settings.tls_cert_file,
        ssl_keyfile=settings.tls_key_file,
        ssl_ca_certs=str(settings.tls_client_ca_file) if settings.tls_client_ca_file else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if settings.tls_client_ca_file else ssl.CERT_NONE,
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
    )
    _allow_connections()
    server = _Server(config)
    with quiet():
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield
        finally:
            server.should_exit = True
            await task
