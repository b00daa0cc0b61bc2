"""What to do about a cause."""

import pytest

from tunan.supervisor.next_step import with_next_step


@pytest.mark.parametrize(
    ("cause", "advice"),
    [
        ("NPU out of memory. Tried to allocate 2 MiB (NPU 0; ...)", "lower memory.utilization"),
        ("operator X failed: EZ3003: No supported Ops kernel", "this CANN lacks the operator"),
        ("aclnnX or aclnnXGetWorkspaceSize not in libopapi.so", "this CANN lacks the operator"),
        ("NPU function error: HBM MULTI BIT ECC ERROR (error code 507054)", "parallel.devices"),
        ("ACL stream synchronize failed, error code:507010: ts lost heartbeat", "npu-smi info"),
        ("EI0002: The wait execution of the Notify register times out", "hccn_tool"),
        ("error code:507015: there is an aicore error exception", "ASCEND_LAUNCH_BLOCKING=1"),
    ],
)
def test_a_device_error_comes_with_its_remedy(cause: str, advice: str) -> None:
    assert with_next_step(cause).startswith(cause.rstrip("."))
    assert advice in with_next_step(cause)


@pytest.mark.parametrize(
    ("cause", "shown"),
    [
        ("Total number of attention heads (3).", "Total number of attention heads (3)"),
        ("NPU out of memory.", "NPU out of memory; where it is short, lower"),
        ("cut here...", "cut here..."),
    ],
)
def test_a_final_full_stop_goes_and_an_ellipsis_stays(cause: str, shown: str) -> None:
    assert with_next_step(cause).startswith(shown)
    assert with_next_step(cause)[len(shown) :][:1] != "."


def test_a_cause_without_a_usual_remedy_is_left_alone() -> None:
    assert with_next_step("KeyError: 'x'") == "KeyError: 'x'"
