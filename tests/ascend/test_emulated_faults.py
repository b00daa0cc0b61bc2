"""Faults on demand: what the real libraries print, raised through the real libraries."""

from pathlib import Path

import pytest

from tests.ascend.emulated import run_snippet

pytestmark = pytest.mark.ascend

# Prints what torch_npu raises, then leaves without the destructors that wait for a dead device.
CATCH = """
import os
try:
    {body}
    torch.npu.synchronize()
    print("RESULT", json.dumps("fine"))
except Exception as error:
    print("RESULT", json.dumps(f"{{type(error).__name__}}: {{error}}"))
import sys
sys.stdout.flush()
os._exit(0)
"""


def raised(body: str, directory: Path, faults: str) -> str:
    return str(run_snippet(CATCH.format(body=body), directory, faults=faults, seconds=60).result)


def test_without_faults_all_is_fine(tmp_path: Path) -> None:
    assert raised("(torch.ones(3).npu() + 1).cpu()", tmp_path, "") == "fine"


def test_memory_runs_out_where_the_fault_says(tmp_path: Path) -> None:
    body = "torch.empty(300 << 20, dtype=torch.uint8, device='npu')"
    text = raised(body, tmp_path, "oom:bytes=256M")
    assert text.startswith("OutOfMemoryError: NPU out of memory. Tried to allocate 302.00 MiB")
    assert "(NPU 0; 4.00 GiB total capacity" in text


def test_a_missing_operator_is_named(tmp_path: Path) -> None:
    body = "torch_npu.npu_top_k_top_p(torch.ones(1, 4).npu(), torch.ones(1).npu())"
    text = raised(body, tmp_path, "missing:op=aclnnApplyTopKTopP")
    assert "aclnnApplyTopKTopP or aclnnApplyTopKTopPGetWorkspaceSize not in libopapi.so" in text


def test_an_uncorrectable_memory_error_is_reported(tmp_path: Path) -> None:
    text = raised("(torch.ones(3).npu() + 1).cpu()", tmp_path, "ecc:after=0")
    assert "HBM MULTI BIT ECC ERROR" in text
    assert "error code is 507054" in text


@pytest.mark.parametrize(
    ("faults", "status"),
    [("lost:after=0", "507010"), ("exception:op=aclnnAdds", "507015")],
    ids=["a lost device", "a failing operator"],
)
def test_a_broken_device_fails_the_next_wait(tmp_path: Path, faults: str, status: str) -> None:
    text = raised("(torch.ones(3).npu() + 1).cpu()", tmp_path, faults)
    assert f"ACL stream synchronize failed, error code:{status}" in text


def test_a_fault_can_hit_one_device_only(tmp_path: Path) -> None:
    body = "(torch.ones(3, device='npu:0') + 1).cpu()"
    outcome = run_snippet(
        CATCH.format(body=body), tmp_path, faults="ecc:after=0,device=1", devices=2, seconds=60
    )
    assert outcome.result == "fine"


def test_a_slow_device_takes_its_time(tmp_path: Path) -> None:
    code = """
import time
x = torch.ones(3).npu(); torch.npu.synchronize()
start = time.monotonic()
for _ in range(10): x = x + 1
torch.npu.synchronize()
print("RESULT", time.monotonic() - start)
"""
    assert run_snippet(code, tmp_path, faults="slow:us=50000", seconds=60).result >= 0.5


COLLECTIVE = """
import os
import torch.distributed as dist, torch.multiprocessing as mp
def rank(index):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["PORT"])
    torch.npu.set_device(index)
    dist.init_process_group("hccl", rank=index, world_size=2)
    try:
        x = torch.ones(4, device=f"npu:{index}")
        dist.all_reduce(x)
        text = x.cpu().tolist()
    except Exception as error:
        text = str(error)
    if index == 0: print("RESULT", json.dumps(text), flush=True)
    os._exit(0)
if __name__ == "__main__":
    context = mp.get_context("fork")
    children = [context.Process(target=rank, args=(index,)) for index in range(2)]
    for child in children: child.start()
    for child in children: child.join()
"""


def test_a_collective_that_never_completes_times_out(tmp_path: Path, unused_tcp_port: int) -> None:
    outcome = run_snippet(
        COLLECTIVE,
        tmp_path,
        devices=2,
        faults="hccl-timeout:after=0",
        seconds=90,
        HCCL_EXEC_TIMEOUT="3",
        PORT=str(unused_tcp_port),
    )
    assert "507048" in outcome.result or "EI0002" in outcome.result
    assert any(
        "The wait execution of the Notify register times out" in line for line in outcome.trace
    )
