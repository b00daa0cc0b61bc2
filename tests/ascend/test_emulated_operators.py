"""Operators on the emulated device: refusals in CANN's words, layouts, graphs, streams."""

import importlib
import re
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.ascend

# Imported when the tests run: collecting them needs no device.
torch_npu: Any = None


@pytest.fixture(scope="module", autouse=True)
def _device() -> None:
    global torch_npu
    torch_npu = importlib.import_module("torch_npu")


def on_device(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype).to("npu")


REFUSED: dict[str, tuple[Any, str]] = {
    "aclnnMatmul": (
        lambda: torch.matmul(on_device(4, 8), on_device(9, 4)),
        "The k-axis of the two inputs are different.",
    ),
    "aclnnRmsNorm": (
        lambda: torch.ops.npu.npu_rms_norm(on_device(2, 4), on_device(3), 1e-6),
        "Input gamma shape invalid, shape is not equal to x last few dimensions",
    ),
    "aclnnAddRmsNorm": (
        lambda: torch.ops.npu.npu_add_rms_norm(
            on_device(2, 4), on_device(3, 4), on_device(4), 1e-6
        ),
        "Input x1 and x2 shape must be same",
    ),
    "aclnnSwiGlu": (
        lambda: torch.ops.npu.npu_swiglu(on_device(4, 127)),
        "must be divisible by 2",
    ),
    "aclnnMm": (
        lambda: torch.mm(on_device(4, 4).int(), on_device(4, 4).int()),
        "self not implemented for DT_INT32, should be in dtype support list [DT_FLOAT,",
    ),
}


@pytest.mark.parametrize("operator", REFUSED)
def test_a_call_that_the_device_refuses_raises_what_users_see(operator: str) -> None:
    call, text = REFUSED[operator]
    with pytest.raises(RuntimeError) as raised:
        call()
    message = str(raised.value)
    assert "error code is 161002" in message
    assert re.search(r"call aclnn\w+ failed", message)
    assert "ERR00100 PTA call acl api failed" in message
    assert f"AclNN_Parameter_Error(EZ1001): {text}" in message or text in message


def test_a_refused_call_leaves_the_device_usable() -> None:
    with pytest.raises(RuntimeError, match="161002"):
        torch.matmul(on_device(4, 8), on_device(9, 4))
    assert torch.equal((torch.ones(3, device="npu") + 1).cpu(), torch.full((3,), 2.0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_product_is_that_of_the_cpu(dtype: torch.dtype) -> None:
    a, b = on_device(8, 16, dtype=dtype), on_device(16, 4, dtype=dtype)
    torch.testing.assert_close((a @ b).cpu(), a.cpu() @ b.cpu())


def test_an_operator_without_a_kernel_falls_back_to_the_cpu() -> None:
    x = torch.rand(5) + 1
    torch.testing.assert_close(torch.lgamma(x.to("npu")).cpu(), torch.lgamma(x))


def test_a_captured_graph_runs_when_it_is_replayed() -> None:
    x, scale = torch.arange(4.0, device="npu"), torch.full((4,), 2.0, device="npu")
    graph = torch_npu.npu.NPUGraph()
    with torch_npu.npu.graph(graph):
        y = x * scale + 1
    x.copy_(torch.tensor([10.0, 20.0, 30.0, 40.0]))
    graph.replay()
    assert y.cpu().tolist() == [21.0, 41.0, 61.0, 81.0]


def test_a_group_of_tasks_in_a_graph_can_be_replaced() -> None:
    x, out = torch.ones(4, device="npu"), torch.empty(4, device="npu")
    graph, side = torch_npu.npu.NPUGraph(), torch_npu.npu.Stream()
    with torch_npu.npu.graph(graph):
        stream = torch_npu.npu.current_stream()
        torch_npu.npu.graph_task_group_begin(stream)
        torch.add(x, 1, out=out)
        handle = torch_npu.npu.graph_task_group_end(stream)
        ten_times = out * 10
    with torch_npu.npu.stream(side):
        torch_npu.npu.graph_task_update_begin(side, handle)
        torch.add(x, 100, out=out)
        torch_npu.npu.graph_task_update_end(side)
    side.synchronize()
    graph.replay()
    assert ten_times.cpu().tolist() == [1010.0] * 4


def test_streams_wait_for_events() -> None:
    side, ready = torch_npu.npu.Stream(), torch_npu.npu.Event()
    x = torch.zeros(1000, device="npu")
    for _ in range(50):
        x += 1
    ready.record()
    with torch_npu.npu.stream(side):
        side.wait_event(ready)
        doubled = x * 2
    side.synchronize()
    assert set(doubled.cpu().tolist()) == {100.0}


def test_freed_memory_comes_back() -> None:
    torch_npu.npu.empty_cache()
    before = torch_npu.npu.mem_get_info()[0]
    block = torch.empty(64 << 20, dtype=torch.uint8, device="npu")
    assert before - torch_npu.npu.mem_get_info()[0] >= 64 << 20
    del block
    torch_npu.npu.empty_cache()
    assert torch_npu.npu.mem_get_info()[0] == before
