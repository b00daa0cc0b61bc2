"""The gateways that benchmarks/gateway.py compares, each as it is started before two engines."""

import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

PATIENCE_S = 30.0
_NGINX = """\
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/nginx-error.log;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream engines {{ least_conn; {servers} keepalive 256; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://engines;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""

Command = Callable[[int, Sequence[int], Path], list[str]]


@dataclass(frozen=True)
class Subject:
    """`command(port, ports of the engines, scratch folder)`; None: the engine itself."""

    name: str
    command: Command | None
    ready_path: str = "/v1/models"


def subjects(vllm_router: str | None, nginx: str | None) -> list[Subject]:
    """Direct access, Tunan's gateway, and those others that are named."""
    found = [
        Subject("direct", None),
        Subject("tunan", _tunan(), "/ready"),
        Subject("tunan, no resume", _tunan("--no-resume"), "/ready"),
    ]
    if vllm_router:
        found.append(Subject("vllm-router", _vllm_router(vllm_router)))
    if nginx:
        found.append(Subject("nginx", _nginx(nginx)))
    return found


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def until_answering(port: int, path: str) -> None:
    """Returns once 200 comes. Raises SystemExit if that takes too long."""
    end = time.perf_counter() + PATIENCE_S
    while time.perf_counter() < end:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise SystemExit(f"nothing answers at port {port}")


def _tunan(*options: str) -> Command:
    def command(port: int, engines: Sequence[int], folder: Path) -> list[str]:
        replicas = [w for engine in engines for w in ("--replica", f"http://127.0.0.1:{engine}")]
        return [sys.executable, "-m", "tunan", "gateway", "--port", str(port), *replicas, *options]

    return command


def _vllm_router(program: str) -> Command:
    def command(port: int, engines: Sequence[int], folder: Path) -> list[str]:
        urls = [f"http://127.0.0.1:{engine}" for engine in engines]
        return [program, "--host", "127.0.0.1", "--port", str(port), "--worker-urls", *urls,
                "--policy", "round_robin", "--worker-startup-check-interval", "1"]  # fmt: skip

    return command


def _nginx(program: str) -> Command:
    def command(port: int, engines: Sequence[int], folder: Path) -> list[str]:
        servers = " ".join(f"server 127.0.0.1:{engine};" for engine in engines)
        config = folder / "nginx.conf"
        config.write_text(_NGINX.format(folder=folder, port=port, servers=servers))
        return [program, "-c", str(config), "-e", str(folder / "nginx-error.log")]

    return command
