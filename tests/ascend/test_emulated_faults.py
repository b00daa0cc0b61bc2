"""Faults on demand: what the real libraries print, raised through the real libraries."""

import re
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
    return str(run_snippet(CATCH.format(body=body), directory, faults=faults, seconds=240).result)


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
        CATCH.format(body=body), tmp_path, faults="ecc:after=0,device=1", devices=2, seconds=240
    )
    assert outcome.result == "fine"


def test_a_device_is_meant_by_the_number_that_the_machine_has_for_it(tmp_path: Path) -> None:
    """A process that has only the second device calls it 0."""
    body = "(torch.ones(3, device='npu:0') + 1).cpu()"
    outcome = run_snippet(
        CATCH.format(body=body),
        tmp_path,
        faults="lost:device=1",
        devices=2,
        seconds=240,
        ASCEND_RT_VISIBLE_DEVICES="1",
    )
    assert "error code:507010" in outcome.result


def test_a_fault_is_there_only_while_its_file_is(tmp_path: Path) -> None:
    file = tmp_path / "broken"
    code = f"""
import os
open({str(file)!r}, "w").close()
def tries():
    try:
        torch.empty(300 << 20, dtype=torch.uint8, device="npu")
        return "fine"
    except Exception as error:
        return type(error).__name__
first = tries()
os.unlink({str(file)!r})
print("RESULT", json.dumps([first, tries()]))
"""
    outcome = run_snippet(code, tmp_path, faults=f"oom:bytes=256M,while={file}", seconds=240)
    assert outcome.result == ["OutOfMemoryError", "fine"]


def test_memory_runs_out_only_after_so_many_operators(tmp_path: Path) -> None:
    body = """
    held = torch.empty(300 << 20, dtype=torch.uint8, device="npu")
    x = torch.ones(3).npu() + 1
    torch.npu.synchronize()
    print("had", x.numel())
    torch.empty(2 << 20, dtype=torch.uint8, device="npu")
"""
    faults = "oom:bytes=256M,after=1"
    outcome = run_snippet(CATCH.format(body=body), tmp_path, faults=faults, seconds=240)
    assert "had 3" in outcome.output
    assert outcome.result.startswith("OutOfMemoryError: NPU out of memory.")


@pytest.mark.parametrize(("set_to", "ends"), [("", "refused"), ("731", "fine")])
def test_an_operator_refuses_a_buffer_of_hccl_that_is_too_small(
    set_to: str, ends: str, tmp_path: Path
) -> None:
    outcome = run_snippet(
        CATCH.format(body="(torch.ones(3).npu() + 1).cpu()"),
        tmp_path,
        faults="hccl-buffer:op=aclnnAdds,mb=731",
        seconds=240,
        HCCL_BUFFSIZE=set_to,
    )
    if ends == "fine":
        assert outcome.result == "fine"
    else:
        assert re.search(r"NEEDED_HCCL_BUFFSIZE.* = 731MB, HCCL_BUFFSIZE=200MB", outcome.result)


def test_a_graph_too_many_finds_no_stream(tmp_path: Path) -> None:
    body = """
    x = torch.ones(3).npu()
    graphs = [torch.npu.NPUGraph() for _ in range(3)]
    for number, graph in enumerate(graphs):
        with torch.npu.graph(graph):
            x + 1
        print("captured", number)
"""
    outcome = run_snippet(
        CATCH.format(body=body), tmp_path, faults="graph-streams:graphs=2", seconds=240
    )
    assert "captured 1" in outcome.output
    assert "captured 2" not in outcome.output
    assert "207008" in outcome.result


def test_a_slow_device_takes_its_time(tmp_path: Path) -> None:
    code = """
import time
x = torch.ones(3).npu(); torch.npu.synchronize()
start = time.monotonic()
for _ in range(10): x = x + 1
torch.npu.synchronize()
print("RESULT", time.monotonic() - start)
"""
    assert run_snippet(code, tmp_path, faults="slow:us=50000", seconds=240).result >= 0.5


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
        seconds=240,
        HCCL_EXEC_TIMEOUT="3",
        PORT=str(unused_tcp_port),
    )
    assert "507048" in outcome.result or "EI0002" in outcome.result
    assert any(
        "The wait execution of the Notify register times out" in line for line in outcome.trace
    )
