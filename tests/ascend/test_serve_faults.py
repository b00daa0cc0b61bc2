"""Each fault of an emulated device through `tunan serve`: one line, a status, nothing left."""

import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.ascend.served import greedy, serving_emulated
from tests.serving import Served, only_one_start, rest_of, wait_until_gone
from tunan.cli.main import main

pytestmark = pytest.mark.ascend

ONE = ("--warmup-requests", "1")
TWO = (*ONE, "--tensor-parallel-size", "2")
# The operators of the start and of one warm-up request are fewer; a stream of 480 tokens has more.
IN_THE_STREAM = "after=8000"
PATIENCE_S = 500
# Longer than the imports of a start take, which count as standing still, too.
STANDS_STILL_S = 180


@pytest.fixture(scope="module")
def model(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = tmp_path_factory.mktemp("converted") / "small-llama"
    assert main(["convert", str(llama), str(result), "--target", "ascend910b"]) == 0
    return result


def ends_cleanly(served: Served) -> None:
    """The service ends with status 3, its port is free, and none of its processes is left."""
    below: set[int] = set()
    deadline = time.monotonic() + PATIENCE_S
    while served.process.poll() is None and time.monotonic() < deadline:
        below |= set(served.engine_processes())
        time.sleep(0.1)
    assert served.process.poll() == 3
    assert wait_until_gone(sorted(below)) == []
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_server((host, int(port))):
        pass


def the_line(served: Served) -> str:
    """The only line on stderr."""
    lines = served.stderr.read_text().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("tunan: the engine ")
    assert served.log in lines[0]
    return lines[0]


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


# kind: the fault, what the libraries say of it, what the line advises.
AT_START = {
    "oom": ("oom:bytes=60M", "NPU out of memory. Tried to allocate", "lower memory.utilization"),
    "missing": ("missing:op=aclnnRmsNorm", "EZ3003", "this CANN lacks the operator"),
    "exception": (
        "exception:op=aclnnRmsNorm",
        "aicore error exception, errorCode=0x800000",
        "ASCEND_LAUNCH_BLOCKING=1",
    ),
    "ecc": ("ecc:after=20", "hbm Multi-bit ECC error occurred", "npu-smi info -t ecc"),
    "lost": ("lost:after=20", "ts lost heartbeat", "`npu-smi info` and `dmesg`"),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", AT_START)
def test_a_fault_at_the_start_is_named_in_one_line(kind: str, model: Path, tmp_path: Path) -> None:
    fault, said, advice = AT_START[kind]
    # vLLM looks first whether a share of the device is free; the fault is to meet what comes after.
    options = (*ONE, *only_one_start(model, tmp_path), "--", "--gpu-memory-utilization=0.01")
    with serving_emulated(model, tmp_path, *options, faults=fault) as served:
        ends_cleanly(served)
        line = the_line(served)
        assert said in line
        assert advice in line


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("ecc", "hbm Multi-bit ECC error occurred"),
        pytest.param("lost", "ts lost heartbeat", marks=pytest.mark.long),
    ],
)
def test_a_fault_in_a_stream_is_told_to_its_client_and_in_one_line(
    kind: str, said: str, model: Path, tmp_path: Path
) -> None:
    options = (*ONE, *only_one_start(model, tmp_path))
    with serving_emulated(model, tmp_path, *options, faults=f"{kind}:{IN_THE_STREAM}") as served:
        served.wait_until_ready()
        text, _ = rest_of(served.stream(480))
        ends_cleanly(served)
        assert text.count("data: {") > 1
        assert '"error"' in text
        assert said in the_line(served)


@pytest.mark.long
@pytest.mark.parametrize("after", [3, 400], ids=["at the start", "in a stream"])
def test_a_collective_that_times_out_is_named_in_one_line(
    after: int, model: Path, tmp_path: Path
) -> None:
    with serving_emulated(
        model,
        tmp_path,
        *TWO,
        *only_one_start(model, tmp_path),
        devices=2,
        faults=f"hccl-timeout:after={after}",
        environment={"HCCL_EXEC_TIMEOUT": "5"},
    ) as served:
        if after > 100:
            served.wait_until_ready()
            text, _ = rest_of(served.stream(480))
            assert '"error"' in text
        ends_cleanly(served)
        assert "The wait execution of the Notify register times out" in the_line(served)


@pytest.mark.long
def test_a_device_that_hangs_at_the_start_does_not_hang_the_service(
    model: Path, tmp_path: Path
) -> None:
    """HCCL itself would wait half an hour. The first collectives are those of the first step."""
    patience = ("--startup-timeout", str(STANDS_STILL_S))
    with serving_emulated(
        model, tmp_path, *TWO, *patience, devices=2, faults="hccl-timeout:after=3"
    ) as served:
        ends_cleanly(served)
        stood = rf"has stood at 'loading (\d+)/\1 blocks' for {STANDS_STILL_S} s"
        assert re.search(stood, the_line(served))


@pytest.mark.long
def test_a_slow_device_serves(model: Path, tmp_path: Path) -> None:
    with serving_emulated(model, tmp_path, *ONE, faults="slow:us=500") as served:
        served.wait_until_ready()
        assert len(greedy(served, [5, 6, 7], 4)) == 4
        assert served.stop(signal.SIGTERM) == 0


@pytest.mark.long
def test_a_killed_engine_core_is_named(model: Path, tmp_path: Path) -> None:
    with serving_emulated(model, tmp_path, *ONE, *only_one_start(model, tmp_path)) as served:
        served.wait_until_ready()
        chunks = served.stream(480)
        next(chunks)
        (core,) = [pid for pid in served.engine_processes() if "EngineCore" in command_of(pid)]
        os.kill(core, signal.SIGKILL)
        text, complete = rest_of(chunks)
        ends_cleanly(served)
        assert '"error"' in text or not complete
        # Its signal is known only if the API server has not asked for it first.
        named = rf"EngineCore \(pid {core}\) (was killed by SIGKILL|ended;)"
        assert re.search(named, the_line(served))
