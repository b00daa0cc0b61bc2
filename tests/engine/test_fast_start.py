"""The launcher's assumptions about vLLM, and that every process dies with its parent."""

import importlib
import inspect
import signal
import subprocess
import sys

import pytest

from tests.serving import wait_until_gone
from tunan.engine import api_server, fast_start

# Importing vLLM uses parts of torch that torch calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

CHAIN = """
import os, subprocess, sys, time
from tunan.engine.launcher import die_with_parent, forks_die_with_parent
die_with_parent()
forks_die_with_parent()
if os.fork() == 0:
    time.sleep(60)
    os._exit(0)
print(os.getpid(), open(f"/proc/self/task/{os.getpid()}/children").read().strip(), flush=True)
time.sleep(60)
"""
SUPERVISOR = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
time.sleep(60)
"""


def test_vllm_still_has_the_parts_the_fast_start_is_made_of() -> None:
    """Fails when upstream changes: then look at tunan/engine/fast_start.py again."""
    assert fast_start.parts_fit()
    front_end = importlib.import_module(fast_start.FRONT_END)
    parameters = set(inspect.signature(front_end.build_and_serve).parameters)
    assert parameters >= {"engine_client", "listen_address", "sock", "args"}


def test_vllm_is_the_version_it_was_checked_against() -> None:
    from vllm.version import __version__

    assert __version__.split("+")[0] == fast_start.CHECKED_VLLM


def test_vllms_flags_are_read_by_its_own_parser(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["launcher", "--model=/m", "--max-num-seqs=3"])
    assert api_server.parse_arguments().max_num_seqs == 3
    monkeypatch.setattr(sys, "argv", ["launcher", "--no-such-flag"])
    with pytest.raises(SystemExit, match="2"):
        api_server.parse_arguments()
    assert "error: unrecognized arguments: --no-such-flag" in capsys.readouterr().err


def test_the_cpu_platform_still_forces_spawn_and_a_worker_process() -> None:
    """If it no longer does, the fast start has nothing left to do and can go."""
    from vllm.platforms.cpu import CpuPlatform

    source = inspect.getsource(CpuPlatform.check_and_update_config)
    assert '"VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"' in source
    assert 'distributed_executor_backend = "mp"' in source


def test_the_death_of_the_supervisor_kills_a_chain_of_forks() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, CHAIN], stdout=subprocess.PIPE, text=True
    ) as supervisor:
        assert supervisor.stdout is not None
        pids = [int(pid) for pid in supervisor.stdout.readline().split()]
        assert len(pids) == 2
        supervisor.send_signal(signal.SIGKILL)
        assert wait_until_gone(pids) == []
