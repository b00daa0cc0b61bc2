"""What the supervisor may change by itself."""

import io
from typing import Any

import pytest

from tunan.config import Deployment
from tunan.diagnosis import Diagnosis, Floors, Remedy, diagnose_streams, remedy_for

OUT_OF_MEMORY = "RuntimeError: NPU out of memory."
CONTEXT = (
    "ValueError: The model's max seq len (65536) is larger than the maximum number of tokens that "
    "can be stored in KV cache ({capacity})."
)
STREAMS = "RuntimeError: NPU function error: capture, error code is 207008"


def _of(line: str) -> Diagnosis:
    return diagnose_streams([("log", io.BytesIO(line.encode()))])


def _deployment(**sections: Any) -> Deployment:
    return Deployment.model_validate({"model": {"path": "/m", "max_model_len": 8192}, **sections})


def _series(line: str, deployment: Deployment) -> list[Remedy]:
    """One remedy after another, each kind once, until there is none."""
    remedies: list[Remedy] = []
    while remedy := remedy_for(_of(line), deployment, applied=[remedy.kind for remedy in remedies]):
        remedies.append(remedy)
        deployment = remedy.deployment
    return remedies


def test_out_of_memory_gives_up_cache_then_batch_then_length() -> None:
    assert [remedy.what for remedy in _series(OUT_OF_MEMORY, _deployment())] == [
        "memory.utilization 0.9 -> 0.85",
        "scheduler.max_num_batched_tokens 2048 -> 1024",
        "model.max_model_len 8192 -> 4096",
    ]


def _out_of_memory(asked: str, used: str, free: str, reserved: str) -> str:
    return (
        f"RuntimeError: NPU out of memory. Tried to allocate {asked} (NPU 0; 60.00 GiB total "
        f"capacity; {used} already allocated; {used} current active; {free} free; {reserved} "
        "reserved in total by PyTorch)"
    )


def test_fragmentation_is_met_by_the_allocator_before_the_cache_is_made_smaller() -> None:
    line = _out_of_memory("4.00 GiB", "40.00 GiB", "1.00 GiB", "58.00 GiB")
    first, second, *_ = _series(line, _deployment())
    assert first.what == "PYTORCH_NPU_ALLOC_CONF=expandable_segments:True"
    assert first.environment == {"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}
    assert first.deployment == _deployment()
    assert second.kind == "lower utilization"


def test_what_is_no_shortage_is_waited_for_before_anything_is_made_smaller() -> None:
    line = _out_of_memory("1.00 GiB", "40.00 GiB", "18.00 GiB", "41.00 GiB")
    first, second, *_ = _series(line, _deployment())
    assert (first.kind, first.deployment) == ("wait for release", _deployment())
    assert second.kind == "lower utilization"


def test_numbers_that_are_none_leave_the_plain_remedies() -> None:
    line = _out_of_memory("2.2.2 GiB", "1.00 GiB", "1.00 GiB", "1.00 GiB")
    assert _series(line, _deployment())[0].what == "memory.utilization 0.9 -> 0.85"


def test_a_shortage_is_not_waited_for() -> None:
    line = _out_of_memory("4.00 GiB", "57.50 GiB", "1.00 GiB", "58.00 GiB")
    assert _series(line, _deployment())[0].kind == "lower utilization"


def test_each_change_is_in_the_deployment_and_the_others_stay() -> None:
    last = _series(OUT_OF_MEMORY, _deployment())[-1].deployment
    assert last.memory.utilization == 0.85
    assert last.scheduler.max_num_batched_tokens == 1024
    assert last.model.max_model_len == 4096
    assert Deployment.model_validate(last.model_dump()) == last


def test_nothing_goes_below_its_floor() -> None:
    at_floors = _deployment(
        model={"path": "/m", "max_model_len": 2048},
        memory={"utilization": 0.5},
        scheduler={"max_num_batched_tokens": 512},
    )
    assert remedy_for(_of(OUT_OF_MEMORY), at_floors) is None
    lower = Floors(utilization=0.4)
    remedy = remedy_for(_of(OUT_OF_MEMORY), at_floors, floors=lower)
    assert remedy is not None
    assert remedy.what == "memory.utilization 0.5 -> 0.45"


def test_the_context_is_cut_to_what_the_cache_holds() -> None:
    remedy = remedy_for(_of(CONTEXT.format(capacity=5000)), _deployment())
    assert remedy is not None
    assert remedy.deployment.model.max_model_len == 4992


def test_a_cache_that_holds_less_than_the_floor_has_no_remedy() -> None:
    assert remedy_for(_of(CONTEXT.format(capacity=1000)), _deployment()) is None


def test_a_leftover_process_is_waited_for_then_lived_with() -> None:
    line = (
        "ValueError: Free memory on device npu:0 (39.00/60.00 GiB) on startup is less than "
        "desired GPU memory utilization (0.9, 54.00 GiB)."
    )
    first, second = _series(line, _deployment())
    assert (first.kind, first.wait_s, first.deployment) == ("wait for release", 60, _deployment())
    assert second.deployment.memory.utilization == 0.65


def test_the_buffer_gets_the_size_that_was_asked_for() -> None:
    line = "[ERROR] NEEDED_HCCL_BUFFSIZE(a * 2) = {}MB, HCCL_BUFFSIZE=200MB."
    remedy = remedy_for(_of(line.format(731)), _deployment())
    assert remedy is not None
    assert remedy.environment == {"HCCL_BUFFSIZE": "731"}
    assert remedy_for(_of(line.format(9000)), _deployment()) is None


def test_fewer_graphs_are_captured() -> None:
    remedy = remedy_for(_of(STREAMS), _deployment(engine_arguments=["--seed=1"]))
    assert remedy is not None
    assert remedy.deployment.engine_arguments == ("--seed=1", "--max-cudagraph-capture-size=256")


def test_sizes_that_were_chosen_by_hand_are_left_alone() -> None:
    chosen = _deployment(engine_arguments=["--cudagraph-capture-sizes", "1", "8"])
    assert remedy_for(_of(STREAMS), chosen) is None


@pytest.mark.parametrize(
    "line", ["KeyError: 1", "RuntimeError: HBM MULTI BIT ECC ERROR", "all is well"]
)
def test_what_no_setting_mends_has_no_remedy(line: str) -> None:
    assert remedy_for(_of(line), _deployment()) is None
